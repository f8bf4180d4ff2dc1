"""Configuration values from external sources (KIP-297, KIP-421)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.command_line import parse_arguments, read_configuration
from config.broker_config import BrokerConfig
from config.definitions import ConfigError, ConfigErrors
from config.properties import resolve
from config.review import Verdict, review
from security.jaas import FILE_PROPERTY, sections_of
from security.openssl_files import read_bytes
from tools.support.common import make_client

PACKAGE = "org.apache.kafka.common.config.provider."
JAAS = "listener.name.sasl.plain.sasl.jaas.config"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SASL_FILE = f"""listeners=SASL://127.0.0.1:0
listener.security.protocol.map=SASL:SASL_PLAINTEXT
inter.broker.listener.name=SASL
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
{JAAS}={PLAIN} username="admin" password="x" user_admin="${{env:ADMIN_PW}}";
"""


def providers(**parameters: str) -> dict[str, str]:
    classes = {"env": "EnvVar", "file": "File", "dir": "Directory"}
    return {
        "config.providers": "env, file,dir",
        **{f"config.providers.{name}.class": f"{PACKAGE}{each}ConfigProvider" for name, each in classes.items()},
        **{f"config.providers.{key.replace('__', '.param.')}": text for key, text in parameters.items()},
    }


def resolved(text: str, environment: dict[str, str] | None = None, **parameters: str) -> str:
    return resolve(providers(**parameters) | {"key": text}, environment or {}, read_bytes)["key"]


def test_each_provider_gives_its_values(tmp_path: Path) -> None:
    Path(tmp_path, "secrets.properties").write_text("user=alice\npassword=a\\u003db\n", encoding="utf-8")
    Path(tmp_path, "token").write_text("first\nsecond", encoding="utf-8")
    assert resolved("<${env:A}|${env:B}>", {"A": "1", "B": "${env:A}"}) == "<1|${env:A}>"
    assert resolved(f"${{file:{tmp_path}/secrets.properties:password}}") == "a=b"
    assert resolved(f"${{dir:{tmp_path}:token}}") == "first\nsecond"
    assert resolved("${vault:secret/x:password} $env ${HOME}") == "${vault:secret/x:password} $env ${HOME}"


def test_a_reference_that_cannot_be_resolved_is_an_error(tmp_path: Path) -> None:
    Path(tmp_path, "p").write_text("a=b", encoding="utf-8")
    inside = Path(tmp_path, "inside")
    inside.mkdir()
    for text, parameters, said in (
        ("${env:MISSING}", {}, "the environment variable MISSING is not set"),
        ("${env:x:SET}", {}, "have no path"),
        ("${env:SET}", {"env__allowlist.pattern": "OTHER_.*"}, "does not allow the variable SET"),
        (f"${{file:{tmp_path}/p:b}}", {}, "has no key b"),
        (f"${{file:{tmp_path}/q:b}}", {}, "cannot be read: No such file"),
        (f"${{file:{inside}/../p:a}}", {"file__allowed.paths": str(inside)}, "is not below allowed.paths"),
        (f"${{dir:{inside}:../p}}", {}, "is not the name of a file"),
        (f"${{dir:{tmp_path}:p}}", {"dir__allowed.paths": str(inside)}, "is not below allowed.paths"),
    ):
        with pytest.raises(ConfigError, match="for configuration key: ") as found:
            resolved(text, {"SET": "1"}, **parameters)
        assert said in str(found.value)


def test_only_kafkas_own_classes_are_providers() -> None:
    with pytest.raises(ConfigErrors) as found:
        resolve({"config.providers": "vault,empty", "config.providers.vault.class": "com.x.Vault"}, {}, read_bytes)
    assert [each.name for each in found.value.errors] == [
        "config.providers.vault.class",
        "config.providers.empty.class",
    ]


def test_a_secret_is_never_the_text_of_a_reference(tmp_path: Path) -> None:
    file = Path(tmp_path, "server.properties")
    file.write_text(SASL_FILE, encoding="utf-8")
    arguments = parse_arguments([str(file)])
    with pytest.raises(ConfigError, match=r"no provider env is in config\.providers") as found:
        read_configuration(arguments, str(file), {"ADMIN_PW": "secret"})
    assert found.value.name == JAAS
    declared = "".join(f"{key}={text}\n" for key, text in providers().items())
    file.write_text(SASL_FILE + declared, encoding="utf-8")
    config = read_configuration(arguments, str(file), {"ADMIN_PW": "secret"})
    assert 'user_admin="secret"' in config.originals[JAAS]
    assert not config.unknown()
    with pytest.raises(ConfigError, match="ADMIN_PW is not set"):
        read_configuration(arguments, str(file), {})


def test_dynamic_configurations_client_files_and_jaas_files_have_no_open_references() -> None:
    secret = {"ssl.keystore.password": "${env:PW}"}
    with pytest.raises(ConfigError, match="no provider env"):
        BrokerConfig({}).with_dynamic(secret)
    with pytest.raises(ConfigError, match="no provider env"):
        make_client("127.0.0.1:1", secret)
    with pytest.raises(ConfigError, match="password in the section Client refers to a value elsewhere"):
        sections_of({FILE_PROPERTY: "f"}, lambda _: 'Client { a.B required username="u" password="${env:PW}"; };')


def test_check_config_judges_what_references_refer_to() -> None:
    properties = providers() | {"num.partitions": "${env:PARTITIONS}", "log.dirs": "/data"}
    found = {each.key: each for each in review(properties, {"PARTITIONS": "3"})}
    assert {each.verdict for each in found.values()} == {Verdict.SUPPORTED}
    assert found["num.partitions"].value == "${env:PARTITIONS}"
    found = {each.key: each for each in review(properties, {})}
    assert found["num.partitions"].verdict is Verdict.BAD
    assert "PARTITIONS is not set" in found["num.partitions"].note
