"""kafka-broker-api-versions: show the APIs and versions of each broker (Kafka class `BrokerApiVersionsCommand`)."""

from __future__ import annotations

import sys

from client.broker_connection import BrokerConnection
from client.errors import ClientError
from protocol.api_keys import ApiKey
from protocol.errors import ApiError
from tools.support.common import BOOTSTRAP_SERVER, COMMAND_CONFIG, admin_client, reason, run_tool
from tools.support.options import OptionParser, Options

NEWEST_VERSIONS: dict[ApiKey, int] = {
    ApiKey.PRODUCE: 11,
    ApiKey.FETCH: 17,
    ApiKey.LIST_OFFSETS: 9,
    ApiKey.METADATA: 12,
    ApiKey.LEADER_AND_ISR: 7,
    ApiKey.STOP_REPLICA: 4,
    ApiKey.UPDATE_METADATA: 8,
    ApiKey.CONTROLLED_SHUTDOWN: 3,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.FIND_COORDINATOR: 6,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.API_VERSIONS: 4,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 5,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 4,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 4,
    ApiKey.DESCRIBE_ACLS: 3,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.CREATE_DELEGATION_TOKEN: 3,
    ApiKey.RENEW_DELEGATION_TOKEN: 2,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 2,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 3,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.OFFSET_DELETE: 0,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.DESCRIBE_QUORUM: 2,
    ApiKey.ALTER_PARTITION: 3,
    ApiKey.UPDATE_FEATURES: 1,
    ApiKey.ENVELOPE: 0,
    ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.UNREGISTER_BROKER: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 1,
    ApiKey.ALLOCATE_PRODUCER_IDS: 0,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: 0,
    ApiKey.PUSH_TELEMETRY: 0,
    ApiKey.LIST_CLIENT_METRICS_RESOURCES: 0,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
    ApiKey.SHARE_GROUP_HEARTBEAT: 0,
    ApiKey.SHARE_GROUP_DESCRIBE: 0,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
    ApiKey.ADD_RAFT_VOTER: 0,
    ApiKey.REMOVE_RAFT_VOTER: 0,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: 0,
    ApiKey.READ_SHARE_GROUP_STATE: 0,
    ApiKey.WRITE_SHARE_GROUP_STATE: 0,
    ApiKey.DELETE_SHARE_GROUP_STATE: 0,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: 0,
}
"""The newest version of each API that a Kafka 3.9 client uses; "usable" is from its point of view."""

PARSER = OptionParser("Show the APIs and versions of each broker.", [BOOTSTRAP_SERVER, COMMAND_CONFIG])


async def work(options: Options) -> int:
    """Print one block for each broker."""
    async with admin_client(options) as client:
        await client.describe_topics([])
        for node in client.known_nodes():
            heading = f"{node.address} (id: {node.node_id} rack: {'null' if node.rack is None else node.rack}) -> "
            try:
                connection = await client.node_connection(node.node_id)
            except (ApiError, ClientError) as error:
                print(f"{heading}ERROR: {reason(error)}")
            else:
                print(f"{heading}(", ",\n".join(api_lines(connection)), ")", sep="\n")
    return 0


def api_lines(connection: BrokerConnection) -> list[str]:
    """A line for each API that either a Kafka 3.9 client or this broker knows."""
    lines = []
    for key in sorted({*map(int, NEWEST_VERSIONS), *connection.versions}):
        served = connection.versions.get(key)
        api_key = _BY_NUMBER.get(key)
        name = "UNKNOWN" if api_key is None else api_name(api_key)
        newest = -1 if api_key is None else NEWEST_VERSIONS[api_key]
        lines.append(f"\t{name}({key}): {_described(served, newest)}")
    return lines


_BY_NUMBER = {int(api_key): api_key for api_key in NEWEST_VERSIONS}


def api_name(api_key: ApiKey) -> str:
    """The name of an API as Kafka writes it, such as FindCoordinator."""
    return "".join(word.title() for word in api_key.name.split("_"))


def _described(served: tuple[int, int] | None, newest: int) -> str:
    if served is None:
        return "UNSUPPORTED"
    low, high = served
    text = str(low) if low == high else f"{low} to {high}"
    if newest < 0:
        return text
    if low > newest:
        return f"{text} [unusable: node too new]"
    return f"{text} [usable: {min(high, newest)}]"


def main(argv: list[str]) -> int:
    """Run the tool; returns its exit code."""
    return run_tool(argv, PARSER, lambda options: options.require("bootstrap-server"), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
