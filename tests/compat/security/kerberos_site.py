"""A broker with GSSAPI in a private realm, and its clients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kit.broker_process import ROOT, BrokerProcess, free_port
from tests.kit.security.kerberos import REALM, Realm, module
from tests.kit.waiting import eventually

BROKER = f"kafka/localhost@{REALM}"
WRONG = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"
TICKETS = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true"
KEY = "listener.name.sasl_plaintext.gssapi.sasl.jaas.config"


def listeners(plain: str, secured_port: int) -> dict[str, str]:
    """One listener in plain text, and one that clients reach by the host name of the broker's principal."""
    return {
        "listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://127.0.0.1:{secured_port}",
        "advertised.listeners": f"PLAINTEXT://{plain},SASL_PLAINTEXT://localhost:{secured_port}",
        "sasl.kerberos.service.name": "kafka",
    }


class Site:
    """A broker that admits alice, as ALICE; and clients that claim to be alice."""

    def __init__(self, directory: Path, realm: Realm) -> None:
        self.directory = directory
        self.realm = realm
        plain, port = f"127.0.0.1:{free_port()}", free_port()
        self.address = f"localhost:{port}"
        self.process = BrokerProcess(
            directory / "broker",
            {
                **listeners(plain, port),
                KEY: module(realm.keytab("kafka/localhost"), BROKER),
                "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1](alice)/U,DEFAULT",
                "connections.max.reauth.ms": "2000",
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                "super.users": "User:ANONYMOUS;User:ALICE",
            },
        )
        self.process.address = plain

    def properties(self, jaas: str, service: str = "kafka") -> str:
        """A file of properties."""
        path = self.directory / "client.properties"
        path.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.jaas.config={jaas}\nsasl.kerberos.service.name={service}\n"
            "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
        )
        return str(path)

    def run(
        self, tool: str, *arguments: str, given: str = "", address: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the tools, by default against this broker."""
        return subprocess.run(
            [sys.executable, "-m", f"tools.{tool}", "--bootstrap-server", address or self.address, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def refusal(self, jaas: str, service: str = "kafka") -> str:
        """The error message of a refused tool."""
        refused = self.run("topics", "--command-config", self.properties(jaas, service), "--list")
        assert refused.returncode == 1
        assert "Traceback" not in refused.stderr
        return refused.stdout + refused.stderr

    def await_logged(self, reason: str) -> None:
        """Wait until the broker's log has the reason."""
        eventually(reason, self.process.output.read_text, lambda output: f"{WRONG}: {reason}" in output)
