"""Properties of clients of a cluster with TLS or SASL: for Java, librdkafka, and clients written in Python."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from config.properties import properties_text
from tools.local_cluster.cluster_directory import ClusterDirectory, ClusterState, write_private
from tools.local_cluster.security.cluster_secrets import ADMIN, ClusterSecrets


class ClientFile(NamedTuple):
    """A file for some clients, which `title` names. It has a password in it."""

    title: str
    path: Path
    text: str
    encoding: str = "utf-8"


def client_files(directory: ClusterDirectory, state: ClusterState) -> list[ClientFile]:
    """The files of a cluster; the first one is for the tools too. Raises ToolError and OSError."""
    secrets, folder = ClusterSecrets(directory, state.security), directory.path / "clients"
    java = {"bootstrap.servers": state.bootstrap_servers, **secrets.client_properties()}
    for_java = "Java, and --command-config of the tools"
    for_librdkafka = "librdkafka: confluent-kafka, kcat -F"
    for_python = "aiokafka, and kafka-python: take **settings"
    return [
        ClientFile(for_java, folder / "java.properties", properties_text(java), "iso-8859-1"),
        ClientFile(for_librdkafka, folder / "librdkafka.properties", _librdkafka(secrets, state)),
        ClientFile(for_python, folder / "client_settings.py", _python(secrets, state)),
    ]


def write_client_files(directory: ClusterDirectory, state: ClusterState) -> None:
    """Write them, where the cluster has security, anew: there may be a broker more."""
    if state.security.is_on:
        for file in client_files(directory, state):
            write_private(file.path, file.text, encoding=file.encoding)


def _librdkafka(secrets: ClusterSecrets, state: ClusterState) -> str:
    settings = {"bootstrap.servers": state.bootstrap_servers, "security.protocol": state.security.protocol}
    if state.security.has_tls:
        settings["ssl.ca.location"] = str(secrets.authority_file)
    if state.security.mechanism:
        settings |= {
            "sasl.mechanism": state.security.mechanism,
            "sasl.username": ADMIN,
            "sasl.password": secrets.password(ADMIN),
        }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _python(secrets: ClusterSecrets, state: ClusterState) -> str:
    settings = {
        "bootstrap_servers": repr(state.bootstrap_servers),
        "security_protocol": repr(state.security.protocol),
    }
    if state.security.has_tls:
        settings["ssl_context"] = f"ssl.create_default_context(cafile={str(secrets.authority_file)!r})"
    if state.security.mechanism:
        settings |= {
            "sasl_mechanism": repr(state.security.mechanism),
            "sasl_plain_username": repr(ADMIN),
            "sasl_plain_password": repr(secrets.password(ADMIN)),
        }
    imports = "import ssl\n\n" if state.security.has_tls else ""
    lines = "".join(f"    {key!r}: {value},\n" for key, value in settings.items())
    return f"{imports}settings = {{\n{lines}}}\n"
