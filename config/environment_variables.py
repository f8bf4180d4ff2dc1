"""Configuration from `KAFKA_*` environment variables, as Apache Kafka's container image reads it (KIP-975, class
`kafka.docker.KafkaDockerWrapper`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from config.definitions import ConfigError
from config.properties import parse_properties

PREFIX = "KAFKA_"
ROOT_LEVEL = "KAFKA_LOG4J_ROOT_LOGLEVEL"
LOGGER_LEVELS = "KAFKA_LOG4J_LOGGERS"

NO_KEYS = frozenset(
    {
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        ROOT_LEVEL,
        LOGGER_LEVELS,
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_JMX_HOSTNAME",
    }
)
"""Variables for a JVM, its tools and its logs. Images written for Apache Kafka set them; they name no key."""


def keys_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys that the variables set: `KAFKA_NUM_PARTITIONS` is num.partitions. One underscore stands for a dot, two
    for an underscore, three for a dash.

    As in a file, a backslash in a value escapes, and a line break begins another key. Raises ConfigError for an
    escape that does not exist.
    """
    lines = [
        f"{_key(name)}={value}"
        for name, value in environment.items()
        if name.startswith(PREFIX) and name not in NO_KEYS
    ]
    return parse_properties("\n".join(lines))


def _key(variable: str) -> str:
    dotted = variable.replace(PREFIX, "").lower().replace("_", ".")
    return dotted.replace("...", "-").replace("..", "_")


def logger_levels(environment: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The level of each logger that the variables name, one of `known`; `root` is the logger above all. Raises
    ConfigError, naming the variable.
    """
    entries = [(ROOT_LEVEL, f"root={environment[ROOT_LEVEL]}")] if environment.get(ROOT_LEVEL) else []
    entries += [(LOGGER_LEVELS, entry) for entry in environment.get(LOGGER_LEVELS, "").split(",") if entry.strip()]
    levels = {}
    for variable, entry in entries:
        name, _, level = map(str.strip, entry.partition("="))
        if not name or level.upper() not in known:
            allowed = f"a logger's level must be one of {', '.join(known)}, as in kafka.controller=WARN"
            raise ConfigError(variable, environment[variable], allowed)
        levels[name] = level.upper()
    return levels


def with_jaas_file(properties: Mapping[str, str], options: str, read: Callable[[str], str]) -> dict[str, str]:
    """`properties`, with a sasl.jaas.config for each listener and mechanism that lacks one and has a module in the
    file that `options`, the text of KAFKA_OPTS, name: in its section NAME.KafkaServer, else in KafkaServer. The URLs
    that the options allow are allowed too.

    Raises ConfigError.
    """
    from config.broker_config import BrokerConfig
    from config.broker_keys import ALLOWED_URLS
    from security.jaas import SERVER, module_text, sections_of, system_properties

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
