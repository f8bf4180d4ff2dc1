"""All clients, which produce and consume over one listener of a `ListenerSite`."""

from __future__ import annotations

import subprocess

from tests.compat.security.attempts import PYTHON_CLIENTS, attempt
from tests.compat.security.listener_site import PASSWORD, PROTOCOLS, STORE_PASSWORD, USER, Identity, ListenerSite
from tests.kit.jars import require
from tests.tools.tool_pair import Runner, kafkas_runner

LINES = "".join(f"{number:06}\n" for number in range(500))
SERVED = "received 500"
GIVE_UP_MS = 1500
"""How long kafka-python retries, whatever the error."""
PACKAGE = "org.apache.kafka.common.security."
TIMEOUT_S = 60
OTHERS = ("kcat", "java")
"""Clients in addition to those of `attempts`."""


class Clients:
    """All clients, each of which can try with a password and an identity."""

    def __init__(self, site: ListenerSite) -> None:
        self._site = site
        self._java: Runner | None = None

    def close(self) -> None:
        """End the JVM, if there is one."""
        if self._java is not None:
            self._java.close()

    def attempt(
        self, client: str, listener: str, mechanism: str, identity: Identity, password: str = PASSWORD, topic: str = ""
    ) -> str:
        """`SERVED`, or the client's error."""
        topic = topic or f"{client}-{listener}-{mechanism}"
        if client == "kcat":
            return self._kcat(listener, mechanism, identity, password, topic)
        if client == "java":
            return self._by_java(listener, mechanism, identity, password, topic)
        assert client in PYTHON_CLIENTS
        given = {"address": self._site.addresses[listener], "protocol": PROTOCOLS[listener].lower(), "topic": topic}
        if "SSL" in PROTOCOLS[listener]:
            given["trusted"] = identity.trusted
            if identity.key:
                given |= {"certificate": identity.certificate, "key": identity.key}
        if mechanism:
            given |= {"mechanism": mechanism, "username": USER, "password": password}
        if password != PASSWORD or identity != self._site.fitting(listener):
            given["give_up_ms"] = str(GIVE_UP_MS)
        return attempt(client, given)

    def _kcat(self, listener: str, mechanism: str, identity: Identity, password: str, topic: str) -> str:
        require("kcat")
        given = {"security.protocol": PROTOCOLS[listener].lower()}
        if "SSL" in PROTOCOLS[listener]:
            given["ssl.ca.location"] = identity.trusted
            if identity.key:
                given |= {"ssl.certificate.location": identity.certificate, "ssl.key.location": identity.key}
        if mechanism:
            given |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
        options = [word for name, value in given.items() for word in ("-X", f"{name}={value}")]
        common = ["kcat", "-b", self._site.addresses[listener], *options, "-t", topic]
        sent = subprocess.run(
            [*common, "-P"], input=LINES, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if sent.returncode:
            return f"refused: {sent.stderr}"
        read = subprocess.run(
            [*common, "-C", "-e", "-q", "-o", "beginning"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return SERVED if read.stdout == LINES else f"{read.returncode}: {read.stdout} {read.stderr}"

    def _by_java(self, listener: str, mechanism: str, identity: Identity, password: str, topic: str) -> str:
        if self._java is None:
            self._java = kafkas_runner(self._site.directory)
        file = self._java_file(listener, mechanism, identity, password)
        at = ["--bootstrap-server", self._site.addresses[listener], "--topic", topic]
        first, others = LINES.split("\n", 1)
        # After a refusal every further line requests metadata again, and is refused again.
        for lines in (first + "\n", others):
            sent = self._java.run("console_producer", [*at, "--producer.config", file], lines)
            if sent.stderr:
                return f"refused: {sent.stderr}"
        options = ["--from-beginning", "--max-messages", "500", "--timeout-ms", "30000"]
        read = self._java.run("console_consumer", [*at, "--consumer.config", file, *options])
        return SERVED if read.stdout == LINES else f"{read.code}: {read.stdout} {read.stderr}"

    def _java_file(self, listener: str, mechanism: str, identity: Identity, password: str) -> str:
        given = {"security.protocol": PROTOCOLS[listener]}
        if "SSL" in PROTOCOLS[listener]:
            given |= {"ssl.truststore.type": "PKCS12", "ssl.truststore.location": identity.trusted_store}
            given["ssl.truststore.password"] = STORE_PASSWORD
            if identity.key_store:
                given |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": identity.key_store}
                given |= {"ssl.keystore.password": STORE_PASSWORD, "ssl.key.password": STORE_PASSWORD}
        if mechanism:
            module = f"{PACKAGE}plain.PlainLoginModule" if mechanism == "PLAIN" else f"{PACKAGE}scram.ScramLoginModule"
            quoted = password.replace("\\", "\\\\").replace('"', '\\"')
            line = f'{module} required username="{USER}" password="{quoted}";'
            given |= {"sasl.mechanism": mechanism, "sasl.jaas.config": line.replace("\\", "\\\\")}
        path = self._site.directory / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
        return str(path)
