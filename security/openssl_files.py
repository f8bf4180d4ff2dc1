"""Keys as OpenSSL needs them: private keys in files, because it reads them from a path only, and PKCS12 stores as PEM.

`cryptography` checks an RSA key when it opens a store and holds the interpreter's lock meanwhile: 0.35 s for a key of
4,096 bits, during which no other thread runs. A thread other than the main one therefore opens the store in a child
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from security.jks import pem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate


FileStamp = tuple[int, int, int]
"""Changes when a file is written anew, or replaced by another one."""


def stamp_of(path: str) -> FileStamp | None:
    """The stamp of a file, None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_bytes(path: str) -> bytes:
    """The content of a file. Raises OSError."""
    with open(path, "rb") as file:
        return file.read()


@contextmanager
def secret_file(content: bytes) -> Iterator[str]:
    """The path of a file with `content` that nobody else can read and that is gone afterwards. On Linux it is only in
    memory.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("odradek-key")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


_ROOT: Final = os.path.realpath(f"{__file__}/../../..")
_START: Final = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from security.openssl_files import main
main()
"""


class Pkcs12(NamedTuple):
    """The content of a store in PEM: a private key with its certificate, and further certificates."""

    key: str | None
    certificate: str | None
    others: tuple[str, ...]


def read_pkcs12(content: bytes, password: str | None) -> Pkcs12:
    """The content of a store. Raises ValueError for a wrong password or another format."""
    if threading.current_thread() is threading.main_thread():
        return _decoded(content, password)
    try:
        return _decoded_by_child(content, password)
    except (OSError, subprocess.SubprocessError):
        # No process could be started, or it was killed: a late answer is better than none.
        return _decoded(content, password)


def _decoded(content: bytes, password: str | None) -> Pkcs12:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    opened, key = load_pkcs12(content, (password or "").encode() or None), None
    if opened.key is not None:
        key = opened.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    own = None if opened.cert is None else _certificate(opened.cert)
    return Pkcs12(key, own, tuple(map(_certificate, opened.additional_certs)))


def _certificate(found: PKCS12Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return pem("CERTIFICATE", found.certificate.public_bytes(Encoding.DER))


def _decoded_by_child(content: bytes, password: str | None) -> Pkcs12:
    """Secrets go through pipes: everybody may read a command line. Raises SubprocessError for a child that failed."""
    task = json.dumps([b64encode(content).decode(), password]).encode()
    command = [sys.executable, "-P", "-c", _START, _ROOT]
    result = subprocess.run(command, input=task, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found, error = json.loads(result.stdout)
    if error is not None:
        raise ValueError(error)
    key, certificate, others = found
    return Pkcs12(key, certificate, tuple(others))


def main() -> None:
    """The child: read a store and its password, write its content or the reason why it cannot be read."""
    content, password = json.load(sys.stdin)
    found, reason = None, None
    try:
        found = _decoded(b64decode(content), password)
    except ValueError as error:
        reason = str(error)
    json.dump((found, reason), sys.stdout)
