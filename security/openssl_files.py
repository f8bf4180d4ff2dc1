"""Keys in the forms that OpenSSL needs: private keys as files, because it reads them only from a path, and PKCS12
stores as PEM.

When `cryptography` opens a store, it checks RSA keys while holding the GIL: 0.35 s for a key of 4,096 bits, during
which no other thread runs. Threads other than the main one therefore open the store in a child process.
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
"""Changes if a file is rewritten or replaced."""


def stamp_of(path: str) -> FileStamp | None:
    """The stamp of a file, or None if it does not exist."""
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
    """The path of a temporary file with `content` that only this user can read. On Linux it exists only in memory."""
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
    """The content of a store in PEM: a private key with its certificate, and more certificates."""

    key: str | None
    certificate: str | None
    others: tuple[str, ...]


def read_pkcs12(content: bytes, password: str | None) -> Pkcs12:
    """Open a store. Raises ValueError for a wrong password or another format."""
    if threading.current_thread() is threading.main_thread():
        return _decoded(content, password)
    try:
        return _decoded_by_child(content, password)
    except (OSError, subprocess.SubprocessError):
        # The process could not be started, or was killed: blocking is better than failing.
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
    """Secrets go through pipes, because command lines are visible to all users. Raises SubprocessError if the child
    fails.
    """
    task = json.dumps([b64encode(content).decode(), password]).encode()
    command = [sys.executable, "-P", "-c", _START, _ROOT]
    result = subprocess.run(command, input=task, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found, error = json.loads(result.stdout)
    if error is not None:
        raise ValueError(error)
    key, certificate, others = found
    return Pkcs12(key, certificate, tuple(others))


def main() -> None:
    """The child process: read a store and its password, and write the content or the error."""
    content, password = json.load(sys.stdin)
    found, reason = None, None
    try:
        found = _decoded(b64decode(content), password)
    except ValueError as error:
        reason = str(error)
    json.dump((found, reason), sys.stdout)
