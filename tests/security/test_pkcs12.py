"""PKCS12 stores are opened by a child process if the event loop must not stop."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from security import openssl_files
from security.openssl_files import Pkcs12, read_pkcs12
from tests.kit.security.certificates import Authority

AUTHORITY = Authority()
BROKER = AUTHORITY.issue("broker")
EXPECTED = Pkcs12(BROKER.key_pem(), BROKER.certificate_pem, (AUTHORITY.pem,))


@pytest.fixture
def store(tmp_path: Path) -> bytes:
    return BROKER.write_pkcs12(tmp_path / "broker.p12", "s3cret", AUTHORITY).read_bytes()


def read_by_thread(content: bytes, password: str | None) -> Pkcs12:
    """Read the content of a store in a thread, like the broker's executor."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(read_pkcs12, content, password).result()


def test_a_thread_opens_no_store_in_this_process(store: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cryptography` holds the interpreter's lock while it checks a key, so a thread does not help."""
    assert read_pkcs12(store, "s3cret") == EXPECTED
    commands: list[Any] = []
    run = subprocess.run

    def recorded(command: list[str], **options: Any) -> Any:
        commands.append((command, options.get("env")))
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    monkeypatch.delattr(openssl_files, "_decoded")
    assert read_by_thread(store, "s3cret") == EXPECTED
    assert len(commands) == 1
    assert "s3cret" not in str(commands)


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_child_says_why_a_store_cannot_be_read(store: bytes, password: str | None) -> None:
    with pytest.raises(ValueError, match=r".") as expected:
        read_pkcs12(store, password)
    with pytest.raises(ValueError, match=r".") as caught:
        read_by_thread(store, password)
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false"])
def test_without_a_child_the_store_is_opened_here(store: bytes, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", program)
    assert read_by_thread(store, "s3cret") == EXPECTED
