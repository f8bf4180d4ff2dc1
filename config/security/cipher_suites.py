"""Names of TLS cipher suites: Kafka's keys have those of Java, and OpenSSL has its own."""

from __future__ import annotations

from config.definitions import ConfigError


def openssl_name(name: str, suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2, as ECDHE-RSA-AES128-GCM-SHA256 is that of
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256. Raises ConfigError for the key `name`.
    """
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not suite.startswith("TLS_") or not found:
        raise ConfigError(name, suite, "not a suite of TLSv1.2, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    if cipher.endswith("CHACHA20_POLY1305_SHA256"):
        cipher = cipher.removesuffix("_SHA256")
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "")
    # OpenSSL has no word for the exchange of a key by RSA alone.
    exchange = "" if exchange == "RSA" else exchange
    return "-".join(part for part in (*exchange.split("_"), *cipher.split("_")) if part)
