"""kafka-configs: describe and alter configurations of topics, brokers and loggers, quotas, and SCRAM users
(Kafka class `ConfigCommand`).

Client metrics are rejected with a message: this broker does not support them yet. With --zookeeper it only changes
SCRAM users, without asking a broker.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from client import admin
from client.admin import ConfigChange, ConfigEntry
from client.kafka_client import KafkaClient
from config.broker_keys import SCRAM_KEYS
from protocol.config_resources import ConfigResourceType, ConfigSource
from tools.configurations import quotas, scram_users, zookeeper_users
from tools.configurations.quotas import QUOTA_ENTITIES, USERS, RefusedError, check_address, check_keys
from tools.support.common import COMMAND_CONFIG, ToolError, admin_client, read_properties, reason, run_tool
from tools.support.options import Option, OptionParser, Options, UsageError

TOPICS: Final = "topics"
BROKERS: Final = "brokers"
BROKER_LOGGERS: Final = "broker-loggers"
ENTITY_TYPES: Final = (TOPICS, "clients", USERS, BROKERS, "ips", BROKER_LOGGERS, "client-metrics")

_FLAGS: Final = {
    "topic": TOPICS,
    "client": "clients",
    "user": USERS,
    "broker": BROKERS,
    "broker-logger": BROKER_LOGGERS,
    "ip": "ips",
}
_DEFAULT_FLAGS: Final = {
    "client-defaults": "clients",
    "user-defaults": USERS,
    "broker-defaults": BROKERS,
    "ip-defaults": "ips",
}
_RESOURCE_TYPES: Final = {
    TOPICS: ConfigResourceType.TOPIC,
    BROKERS: ConfigResourceType.BROKER,
    BROKER_LOGGERS: ConfigResourceType.BROKER_LOGGER,
}
_SOURCE_NAMES: Final = {source.value: source.name for source in ConfigSource}
_PASSWORD: Final = re.compile(r"(password=)[^\]]*")
_OUTSIDE_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"

PARSER = OptionParser(
    "Describe and alter configurations of topics, brokers and loggers, quotas, and SCRAM users.",
    [
        Option("bootstrap-server", "The brokers to connect to; required unless --zookeeper is given.", "host:port,..."),
        Option("bootstrap-controller", "Not supported: brokers are the only controllers.", "host:port,..."),
        Option("zookeeper", "In its place, to create SCRAM users before brokers start: the tree.", "host:port,..."),
        Option("zk-tls-config-file", "With --zookeeper: a file with the properties zookeeper.ssl.*.", "property file"),
        COMMAND_CONFIG,
        Option("describe", "Show configurations that differ from the static ones."),
        Option("all", "With --describe: show all configurations."),
        Option("alter", "Change configurations."),
        Option("entity-type", f"The type of entity to configure: {', '.join(ENTITY_TYPES)}.", ""),
        Option("entity-name", "Its name: of the topic, user, client or ip, or the id of the broker.", ""),
        Option("entity-default", "The default for entities without their own configuration."),
        Option("add-config", "Keys to set: k1=v1,k2=[v1,v2],SCRAM-SHA-512=[iterations=N,password=P].", ""),
        Option("add-config-file", "A file with the keys to set.", ""),
        Option("delete-config", "Keys to remove: k1,k2.", ""),
        Option("force", "Accepted for compatibility; nothing is asked."),
        Option("topic", "Short for --entity-type topics --entity-name.", ""),
        Option("broker", "Short for --entity-type brokers --entity-name.", ""),
        Option("broker-defaults", "Short for --entity-type brokers --entity-default."),
        Option("broker-logger", "Short for --entity-type broker-loggers --entity-name.", ""),
        Option("user", "Short for --entity-type users --entity-name.", ""),
        Option("user-defaults", "Short for --entity-type users --entity-default."),
        Option("client", "Short for --entity-type clients --entity-name.", ""),
        Option("client-defaults", "Short for --entity-type clients --entity-default."),
        Option("ip", "Short for --entity-type ips --entity-name.", ""),
        Option("ip-defaults", "Short for --entity-type ips --entity-default."),
    ],
)


class Entity(NamedTuple):
    """A configured resource. `name` is empty for the defaults of all brokers, and None for all resources."""

    kind: str
    name: str | None

    @property
    def title(self) -> str:
        """Its description in messages."""
        return f"{self.kind.removesuffix('s')} {self.name}"


# -- the command line --------------------------------------------------------------------------------------------------


def check(options: Options) -> None:
    """Raise UsageError or ToolError for invalid combinations of options."""
    if options.has("alter") == options.has("describe"):
        raise UsageError("Command must include exactly one action: --describe, --alter")
    options.forbid("describe", "alter", "add-config", "delete-config")
    entity = chosen_entity(options)
    _check_connection(options)
    if entity.kind in QUOTA_ENTITIES:
        check_address(*chosen_quota_entity(options))
    elif entity.kind not in _RESOURCE_TYPES:
        raise ToolError(f"Configurations of {entity.kind} are not supported yet")
    if entity.name and entity.kind in {BROKERS, BROKER_LOGGERS} and not re.fullmatch(r"\d+", entity.name):
        raise ToolError(
            f"The entity name for {entity.kind} must be a valid integer broker id, but it is: {entity.name}"
        )
    if options.has("describe") and entity.kind == BROKER_LOGGERS and not entity.name:
        raise ToolError("an entity name must be specified with --describe of broker-loggers")
    if options.has("alter"):
        _check_alter(options, entity)


def _check_connection(options: Options) -> None:
    given = [name for name in ("bootstrap-server", "bootstrap-controller", "zookeeper") if options.has(name)]
    if not {"bootstrap-server", "zookeeper"}.intersection(given):
        raise ToolError("One of the required --bootstrap-server or --zookeeper arguments must be specified")
    if len(given) > 1:
        raise ToolError("Only one of --bootstrap-server, --bootstrap-controller, and --zookeeper can be specified")
    if options.has("zookeeper") and options.has("all"):
        raise ToolError("--bootstrap-server must be specified for --all")
    if options.has("zk-tls-config-file") and not options.has("zookeeper"):
        raise ToolError("Only the --zookeeper option can be used with the --zk-tls-config-file option.")


def chosen_entity(options: Options) -> Entity:
    """Return the resources that --entity-type and --entity-name, or their short forms, name. Raises ToolError."""
    kinds = _kinds(options)
    if len(kinds) != len(set(kinds)):
        raise ToolError(
            f"Duplicate entity type(s) specified: {','.join(sorted({k for k in kinds if kinds.count(k) > 1}))}"
        )
    for kind in kinds:
        if kind not in ENTITY_TYPES:
            raise ToolError(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(ENTITY_TYPES)} "
                "with a --bootstrap-server or --bootstrap-controller argument"
            )
    if options.has("zookeeper") and not set(kinds) <= {USERS}:
        raise ToolError(f"Invalid entity type {','.join(kinds)}, the entity type must be {USERS} with --zookeeper")
    if not kinds:
        raise ToolError("At least one entity type must be specified")
    if len(kinds) > 1 and set(kinds) != {"users", "clients"}:
        raise ToolError("Only 'users' and 'clients' entity types may be specified together")
    is_long = any(map(options.has, ("entity-type", "entity-name", "entity-default")))
    short = [flag for flag in (*_FLAGS, *_DEFAULT_FLAGS) if options.has(flag)]
    if is_long and short:
        raise ToolError("--entity-{type,name,default} should not be used in conjunction with specific entity flags")
    if kinds[0] in QUOTA_ENTITIES:
        names = chosen_quota_entity(options)[1]
        return Entity(kinds[0], names[0] if names else None)
    if (short and short[0] in _DEFAULT_FLAGS) or options.has("entity-default"):
        return Entity(kinds[0], "")
    return Entity(kinds[0], options.text(short[0] if short else "entity-name"))


def chosen_quota_entity(options: Options) -> tuple[list[str], list[str]]:
    """Types and names of the parts of a quota entity; "" is the default name. Types without a name match any."""
    given = iter(options.texts("entity-name"))
    names = [next(given) if option == "entity-name" else "" for option in options.order
             if option in {"entity-name", "entity-default"}]  # fmt: skip
    names += [options.required_text(flag) for flag in _FLAGS if options.has(flag)]
    names += ["" for flag in _DEFAULT_FLAGS if options.has(flag)]
    return _kinds(options), names


def _kinds(options: Options) -> list[str]:
    return options.texts("entity-type") + [
        kind for flag, kind in {**_FLAGS, **_DEFAULT_FLAGS}.items() if options.has(flag)
    ]


def _check_alter(options: Options, entity: Entity) -> None:
    if entity.kind in {BROKERS, *QUOTA_ENTITIES} and entity.name is None:
        raise ToolError(
            "an entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
        )
    kinds, names = chosen_quota_entity(options)
    if entity.kind in QUOTA_ENTITIES and len(kinds) != len(names):
        raise ToolError("An entity name must be specified for every entity type")
    if entity.kind not in {BROKERS, *QUOTA_ENTITIES} and not entity.name:
        raise ToolError(f"an entity name must be specified with --alter of {entity.kind}")
    if options.has("add-config") and options.has("add-config-file"):
        raise ToolError("Only one of --add-config or --add-config-file must be specified")
    if not any(map(options.has, ("add-config", "add-config-file", "delete-config"))):
        raise ToolError(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )


def chosen_changes(options: Options) -> tuple[dict[str, str], list[str]]:
    """The keys to set with their values, and those to remove. Raises ToolError, ConfigError and OSError."""
    path = options.text("add-config-file")
    added = read_properties(path) if path is not None else parse_configs(options.text("add-config") or "")
    return added, [key.strip() for key in (options.text("delete-config") or "").split(",") if key.strip()]


def parse_configs(text: str) -> dict[str, str]:
    """`k1=v1,k2=[v1,v2]` as a mapping. Raises ToolError when a part is not of that form."""
    configs = {}
    for part in re.split(rf"\s*,{_OUTSIDE_BRACKETS}", text):
        if not part.strip():
            continue
        pair = re.split(rf"\s*=\s*{_OUTSIDE_BRACKETS}", part)
        if len(pair) != 2:
            raise ToolError(
                'requirement failed: Invalid entity config: all configs to be added must be in the format "key=val".'
            )
        configs[pair[0].strip()] = re.sub(r"\[?\]?", "", pair[1].strip())
    return configs


# -- the work ----------------------------------------------------------------------------------------------------------


async def work(options: Options) -> int:
    """Describe or alter."""
    entity = chosen_entity(options)
    if options.has("zookeeper"):
        print("Warning: --zookeeper is deprecated and will be removed in a future version of Kafka.")
        print("Use --bootstrap-server instead to specify a broker to connect to.", flush=True)
        names = chosen_quota_entity(options)[1]
        if options.has("describe"):
            return await zookeeper_users.describe(options, names)
        added, deleted = chosen_changes(options)
        return await zookeeper_users.alter(options, names[0], added, deleted)
    async with admin_client(options) as client:
        if options.has("describe") and entity.kind in QUOTA_ENTITIES:
            await describe_quota_entity(client, *chosen_quota_entity(options))
        elif options.has("describe"):
            await describe(client, entity, show_all=options.has("all"))
        else:
            await alter(client, entity, options)
    return 0


async def describe_quota_entity(client: KafkaClient, kinds: Sequence[str], names: Sequence[str]) -> None:
    """Print quotas, and for entities of only users also their SCRAM credentials."""
    await quotas.describe(client, kinds, names)
    if list(kinds) == [USERS] and "" not in names:
        await scram_users.describe(client, names)


async def describe(client: KafkaClient, entity: Entity, *, show_all: bool) -> None:
    """Print the configuration of one entity, or of all topics or brokers."""
    if entity.name is not None:
        entities = [entity]
    elif entity.kind == TOPICS:
        entities = [Entity(TOPICS, name) for name in sorted((await admin.list_topics(client)).topics)]
    else:
        nodes = sorted((await client.describe_topics([])).nodes)
        entities = [*(Entity(entity.kind, str(node)) for node in nodes), Entity(entity.kind, "")]
    for each in entities:
        if each.kind == BROKERS and not each.name:
            print("Default configs for brokers in the cluster are:")
        else:
            print(f"{'All' if show_all else 'Dynamic'} configs for {each.title} are:")
        for entry in await own_entries(client, each, show_all=show_all):
            synonyms = ", ".join(
                f"{_SOURCE_NAMES.get(synonym.source, 'UNKNOWN')}:{synonym.name}={_shown(synonym.value)}"
                for synonym in entry.synonyms
            )
            sensitive = str(entry.is_sensitive).lower()
            print(f"  {entry.name}={_shown(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}")


def _shown(value: str | None) -> str:
    return "null" if value is None else value


async def own_entries(client: KafkaClient, entity: Entity, *, show_all: bool = False) -> list[ConfigEntry]:
    """The configurations of one entity, sorted; only its own dynamic ones unless `show_all`."""
    resource = (_RESOURCE_TYPES[entity.kind], entity.name or "")
    found = await admin.describe_configs(client, [resource], include_synonyms=True)
    if entity.kind == TOPICS:
        own_source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    else:
        own_source = ConfigSource.DYNAMIC_BROKER_CONFIG if entity.name else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    keep_all = show_all or entity.kind == BROKER_LOGGERS
    entries = [entry for entry in found[resource] if keep_all or entry.config_source == own_source]
    return sorted(entries, key=lambda entry: entry.name)


async def alter(client: KafkaClient, entity: Entity, options: Options) -> None:
    """Set and remove keys. Raises ToolError for a key to remove that is not set."""
    added, deleted = chosen_changes(options)
    if entity.kind in QUOTA_ENTITIES:
        kinds, names = chosen_quota_entity(options)
        check_keys(kinds, names, added, deleted)
        if {*added, *deleted}.intersection(SCRAM_KEYS):
            await scram_users.alter(client, names[0], added, deleted)
        else:
            await quotas.alter(client, kinds, names, added, deleted)
    else:
        await _alter_resource(client, entity, added, deleted)
    if entity.name:
        print(f"Completed updating config for {entity.title}.")
    else:
        print(f"Completed updating default config for {entity.kind} in the cluster.")


async def _alter_resource(
    client: KafkaClient, entity: Entity, added: Mapping[str, str], deleted: Sequence[str]
) -> None:
    if "message.format.version" in added:
        print(
            f"WARNING: The configuration message.format.version={added['message.format.version']} is specified. This "
            "configuration will be ignored if the version is newer than the inter.broker.protocol.version specified in "
            "the broker or if the inter.broker.protocol.version is 3.0 or newer. This configuration is deprecated and "
            "it will be removed in Apache Kafka 4.0."
        )
    entries = await own_entries(client, entity)
    present = {entry.name for entry in entries}
    if entity.kind == BROKER_LOGGERS:
        unknown = [key for key in (*deleted, *added) if key not in present]
        if unknown:
            raise RefusedError(f"Invalid broker logger(s): {','.join(unknown)}")
    unset = [key for key in deleted if key not in present]
    if unset:
        raise RefusedError(f"Invalid config(s): {','.join(unset)}")
    hidden = [entry.name for entry in entries if entry.is_sensitive and entry.name not in {*added, *deleted}]
    if entity.kind == BROKERS and hidden:
        raise RefusedError(
            "All sensitive broker config entries must be specified for --alter, missing entries: "
            f"Set({', '.join(hidden)})"
        )
    changes = [ConfigChange(key, value) for key, value in added.items()]
    changes += [ConfigChange(key, None) for key in deleted if key not in added]
    await admin.alter_configs(client, _RESOURCE_TYPES[entity.kind], entity.name or "", changes)


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""

    def fail(error: BaseException) -> None:
        if not isinstance(error, RefusedError):
            shown = _PASSWORD.sub(r"\1[hidden]", " ".join(argv))
            print(f"Error while executing config command with args '{shown}'", file=sys.stderr)
        print(reason(error), file=sys.stderr)

    return run_tool(argv, PARSER, check, work, fail=fail)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
