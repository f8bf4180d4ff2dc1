"""A private authority and its certificates, in the PEM files that ZooKeeper and brokers read."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kit.jars import require

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650")


class Authority:
    """Signs certificates. Skips the test without openssl."""

    def __init__(self, directory: Path) -> None:
        require("openssl")
        self._directory = directory
        self._key = directory / "authority.key"
        self.certificate = directory / "authority.pem"
        directory.mkdir(parents=True, exist_ok=True)
        _openssl(
            "req", "-x509", *_NEW_KEY, "-subj", "/CN=authority",
            "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def issue(self, name: str) -> Path:
        """A file with a key and its certificate for the host `name`."""
        key, certificate, both = (self._directory / f"{name}.{kind}" for kind in ("key", "crt", "pem"))
        _openssl(
            "req", "-x509", *_NEW_KEY, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
            "-CA", str(self.certificate), "-CAkey", str(self._key), "-keyout", str(key), "-out", str(certificate),
        )  # fmt: skip
        both.write_text(key.read_text() + certificate.read_text())
        return both


def with_password(key_store: Path, password: str) -> Path:
    """A copy of the file whose key is encrypted with `password`."""
    locked = key_store.with_suffix(".locked.pem")
    _openssl("pkey", "-in", str(key_store), "-aes256", "-passout", f"pass:{password}", "-out", str(locked))
    with locked.open("a") as file:
        file.write(key_store.with_suffix(".crt").read_text())
    return locked


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
