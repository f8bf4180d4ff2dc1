"""The options of a Java process that are about SASL (KAFKA_OPTS), as the keys that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from config.broker_config import BrokerConfig
from config.keys_odradek import ALLOWED_URLS
from config.security.jaas_file import SERVER, module_text, sections_of, system_properties


def with_jaas_file(properties: Mapping[str, str], options: str, read: Callable[[str], str]) -> dict[str, str]:
    """`properties`, with a sasl.jaas.config for each listener and mechanism that lacks one and has a module in the
    file that `options`, the text of KAFKA_OPTS, name: in its section NAME.KafkaServer, else in KafkaServer. The URLs
    that the options allow are allowed too.

    Raises ConfigError.
    """
    given = system_properties(options)
    sections = sections_of(given, read)
    found = {ALLOWED_URLS: given[ALLOWED_URLS]} if ALLOWED_URLS in given else {}
    for each in BrokerConfig.examine(properties)[0].listeners:
        if each.security_protocol.startswith("SASL"):
            name = each.listener_name.lower()
            everywhere = properties.get("sasl.enabled.mechanisms", "GSSAPI")
            for mechanism in properties.get(f"listener.name.{name}.sasl.enabled.mechanisms", everywhere).split(","):
                text = module_text(sections, (f"{name}.{SERVER}", SERVER), mechanism.strip())
                if text is not None:
                    found[f"listener.name.{name}.{mechanism.strip().lower()}.sasl.jaas.config"] = text
    return {**found, **properties}
