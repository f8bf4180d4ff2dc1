"""A real MIT Kerberos for tests: a private realm on loopback, with keytabs and tickets for its principals."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.broker_process import await_port, free_port

REALM = "ODRADEK.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_SYSTEM = "/usr/sbin:/sbin:/usr/local/sbin"
"""Directories that a user's PATH may lack."""


def require_kerberos() -> None:
    """Skip the running test without MIT's key distribution centre, or without the optional package gssapi."""
    pytest.importorskip(
        "gssapi", reason="needs the package gssapi: pip install 'odradek[kerberos]'", exc_type=ImportError
    )
    path = f"{os.environ['PATH']}:{_SYSTEM}"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        pytest.skip(f"needs MIT Kerberos: {', '.join(missing)}")


class Realm:
    """A running key distribution centre, and its principals."""

    def __init__(self, directory: Path, *, clock_skew_s: int = 300) -> None:
        """`clock_skew_s` is the validity of tokens, and of tickets after their expiry."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._port = free_port()
        self.config = self.write_config(clock_skew_s=clock_skew_s)
        (directory / "kdc.conf").write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{self._port}\n'
            f"[realms]\n {REALM} = {{\n database_name = {directory / 'principals'}\n"
            f" key_stash_file = {directory / 'stash'}\n max_life = 1d\n max_renewable_life = 1d\n }}\n"
        )
        self.environment = {
            **os.environ,
            "PATH": f"{os.environ['PATH']}:{_SYSTEM}",
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{directory / 'nobody'}",
            "KRB5RCACHENAME": f"file2:{directory / 'replays'}",
        }
        """The environment for processes of this realm. Its ticket cache does not exist, so they need their own."""
        self._output = directory / "kdc.log"
        self._process: subprocess.Popen[bytes] | None = None

    def write_config(self, name: str = "krb5.conf", *, clock_skew_s: int = 300, port: int | None = None) -> Path:
        """Write a krb5.conf; `port` is that of another centre."""
        path = self._directory / name
        path.write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f" dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n"
            f" clockskew = {clock_skew_s}\n"
            f"[realms]\n {REALM} = {{\n kdc = 127.0.0.1:{port or self._port}\n }}\n"
        )
        return path

    def start(self) -> None:
        """Create an empty database, and serve it."""
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        with self._output.open("ab") as output:
            command = ["krb5kdc", "-n", "-r", REALM]
            self._process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)
        await_port(self._port, self._process, self._output, 30)

    def stop(self) -> None:
        """Stop it, if it is running."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def keytab(self, *principals: str) -> str:
        """A file with the keys of principals, which are created if they are new."""
        path = self._directory / f"{'+'.join(principals).replace('/', '_')}.keytab"
        known = self._run("kadmin.local", "-r", REALM, "-q", "listprincs")
        for principal in principals:
            if f"{principal}@{REALM}\n" not in known:
                self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -norandkey -k {path} {principal}")
        return str(path)

    def change_key(self, principal: str) -> None:
        """Change its key, which invalidates existing keytabs."""
        self._run("kadmin.local", "-r", REALM, "-q", f"cpw -randkey {principal}")

    def delete(self, principal: str) -> None:
        """Delete the principal from the realm."""
        self._run("kadmin.local", "-r", REALM, "-q", f"delprinc -force {principal}")

    def limit_life(self, principal: str, life_s: int) -> None:
        """Limit the lifetime of a principal's tickets."""
        self.keytab(principal)
        self._run("kadmin.local", "-r", REALM, "-q", f'modprinc -maxlife "{life_s} seconds" {principal}')

    def tickets(self, principal: str, *, life_s: int = 3600) -> str:
        """A ticket cache like kinit's."""
        path = self._directory / f"{principal.replace('/', '_')}-{life_s}.cache"
        keytab = self.keytab(principal)
        self._run("kinit", "-l", f"{life_s}s", "-k", "-t", keytab, "-c", str(path), f"{principal}@{REALM}")
        return str(path)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


@contextmanager
def running_realm(directory: Path, *, clock_skew_s: int = 300) -> Iterator[Realm]:
    """Run a realm for the duration of a block. Skips like `require_kerberos`."""
    require_kerberos()
    realm = Realm(directory, clock_skew_s=clock_skew_s)
    try:
        realm.start()
        yield realm
    finally:
        realm.stop()


def module(keytab: str, principal: str, *others: str) -> str:
    """A login module with a keytab; `others` are additional options."""
    options = f'useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}" {" ".join(others)}'
    return f"com.sun.security.auth.module.Krb5LoginModule required {options.strip()};"


@contextmanager
def realm_of_this_process(directory: Path, *, clock_skew_s: int = 300) -> Iterator[Realm]:
    """Run a realm for the duration of a block, and make this process a member."""
    with running_realm(directory, clock_skew_s=clock_skew_s) as realm, pytest.MonkeyPatch.context() as patch:
        for name, value in realm.environment.items():
            if name.startswith("KRB5"):
                patch.setenv(name, value)
        yield realm
