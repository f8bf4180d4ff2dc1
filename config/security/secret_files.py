"""Files as OpenSSL needs them: it reads private keys from a path only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

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
