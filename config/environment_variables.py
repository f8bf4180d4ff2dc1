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
"""Variables for a JVM, its tools and its logs, which are not keys. Images based on Apache Kafka's set them."""


def keys_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys set by the variables: `KAFKA_NUM_PARTITIONS` is num.partitions. One underscore means a dot, two an
    underscore, three a dash.

    As in a file, a backslash in a value escapes, and a line break begins another key. Raises ConfigError for an invalid
    escape.
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
    """The level of each logger in the variables, one of `known`; `root` is the root logger. Raises ConfigError, naming
    the variable.
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
    """Add a sasl.jaas.config to `properties` for each listener and mechanism that lacks one and has a module in the
    JAAS file named in `options`, the text of KAFKA_OPTS: in its section NAME.KafkaServer, otherwise in KafkaServer.
    URLs allowed in the options are added as well.

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
