"""Passwords in Kafka's encoding."""

from __future__ import annotations

import pytest

from config.broker_config import BrokerConfig
from config.definitions import ConfigError
from security.password_encoder import PasswordEncoder

SECRET, PASSWORD = "the secret é", 'pass, word: "é€'
BY_DEFAULT = (
    "initializationVector:83wnha6o6HCNprbpjFsF9g==,keyLength:128,salt:EL8al+o6qDsNEQp4ofdV8nCVXvjq101MreVrY5Exa2ezW"
    "yk7toY7KTRaIwTgQw+jc6QK44VG/y1YC9ZAHz1h3mMLgwbVDNB9x4+tMhqltnSxGhtCF21ru9pvPLK+fyWAnYAYxWrquKjeSZGRAimCOQru4q6"
    "vNYCZGz5NmBiJj13auiwZ+mNYlcJPbGmvn8XIJnzPdAWf9q3L57mnW00ShUA1mm1n3Wb6gIPuuHq95NqYZrOVMDiNWSa3SFMGJ21cOANcjrrEU"
    "Il8vlWf1eAvfoNH3K6XiN+BEJ5eFMT01X0uSWcPD/dlpC/BUaslnOfF+NvPXO45ZarJEiNn6M/UPg==,keyFactoryAlgorithm:PBKDF2With"
    "HmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:15,encryptedPassword:vyFyv+QED/"
    "vtfmEFHLGFEcmU7Q2xl8+mbVns+/ZFTTw="
)
BY_SHA1 = (
    "initializationVector:vEPfT3Xc3+k0QbQAu/vrmA==,keyLength:128,salt:R36dzByFgXAD/FoRC2Ed2JoEz+rIy0CfGOJ91ZAupxRK4"
    "xslu8rybMWN0jzlOroGbQgcr2jl3sinDsn2kfOaLi+LYc+osTTC82r6cT8G6sNdkdPrmBV8giKbuM/4WpKg/cWyb0Stbp4gjam+4VaGFOjW2oZ"
    "MR69qN8ZHzrzgTooduW+CB6A2IfUZLXlGohiLvs9asolUfSIAZy9Boey6/XcxoqRr6nw0xRxxD2Zw6NwrW2eBkFsRK3ktMfyA5J8v73SUu83m5"
    "TQUNTyhwMyQfJRSiYnjuy5FoBXfEiMTDSBcfqQ6+czxQnvrsFNDJggrYCtMROQglwBeVdGT4qf8fQ==,keyFactoryAlgorithm:PBKDF2With"
    "HmacSHA1,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwordLength:15,encryptedPassword:qx1sTsvD1jBB"
    "mYpGLOX21jmfXWmXG4mi3r6mX9LaHNI="
)
"""Written by Apache Kafka 3.9.1, with its default algorithm and with PBKDF2WithHmacSHA1."""


def encoder(**others: str) -> PasswordEncoder:
    """`others` have underscores for dots, without the prefix password.encoder."""
    keys = {f"password.encoder.{name.replace('_', '.')}": value for name, value in others.items()}
    made = PasswordEncoder.of(BrokerConfig.of({"broker.id": "0", "password.encoder.secret": SECRET, **keys}).values)
    assert made is not None
    return made


@pytest.mark.parametrize("text", [BY_DEFAULT, BY_SHA1])
def test_what_kafka_has_written(text: str) -> None:
    assert encoder().decode(text) == PASSWORD


def test_every_way_there_and_back() -> None:
    for others in (
        {},
        {"key_length": "256"},
        {"keyfactory_algorithm": "PBKDF2WithHmacSHA256", "iterations": "1024", "key_length": "192"},
    ):
        for password in (PASSWORD, "", "x" * 16):
            text = encoder(**others).encode(password)
            assert encoder().decode(text) == password
            assert encoder(**others).encode(password) != text


def test_another_secret_and_nonsense() -> None:
    text = encoder().encode(PASSWORD)
    bad = [
        "",
        "plain",
        text.replace("passwordLength:15", "passwordLength:16"),
        text.replace("iterations:4096", "iterations:999999999"),
        text.replace("iterations:4096", "iterations:0"),
        text.replace("keyLength:128", "keyLength:12"),
        text.replace("SHA512", "SHA3"),
        text.replace("encryptedPassword:", "encryptedPassword:A"),
        text.replace("initializationVector:", "initializationVector:AAAA"),
    ]
    for each in bad:
        with pytest.raises(ValueError, match=r"."):
            encoder().decode(each)
    with pytest.raises(ValueError, match=r"."):
        encoder(secret="another").decode(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [("cipher.algorithm", "AES/GCM/NoPadding"), ("keyfactory.algorithm", "MD5"), ("key.length", "100")],
)
def test_what_stops_the_start(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{value} for configuration password\.encoder\.{key}: it must be one of"):
        encoder(**{key.replace(".", "_"): value})
