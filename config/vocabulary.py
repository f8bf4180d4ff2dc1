"""The short words of the key tables: types, update modes, bounds used more than once, and reasons to refuse a key."""

from __future__ import annotations

from config.definitions import ConfigType, Matching, OneOf, UpdateMode

BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST
CLASS = ConfigType.CLASS
PASSWORD = ConfigType.PASSWORD

PER_BROKER = UpdateMode.PER_BROKER
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308

COMPRESSION_TYPES = OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
METADATA_VERSION = Matching(
    r"(0\.8\.[012]|0\.9\.0(\.\d+)?|0\.1[01]\.\d+(\.\d+|-IV\d)?|[1-3]\.\d+(\.\d+)?(-IV\d)?|4\.0(-IV[01])?)",
    "Version {value} is not a valid version",
)
NON_EMPTY = Matching("(?s).+", "String must be non-empty")
THROTTLED_REPLICAS = Matching(
    r"\*|[0-9]+:[0-9]+",
    "{name} must be the literal '*' or a list of replicas in the following format: "
    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
)

AUTHORIZERS = Matching(
    r"|kafka\.security\.authorizer\.AclAuthorizer",
    "Java classes cannot be loaded; there is kafka.security.authorizer.AclAuthorizer",
)
REPLICA_SELECTORS = Matching(
    r"org\.apache\.kafka\.common\.replica\.(LeaderSelector|RackAwareReplicaSelector)",
    "Java classes cannot be loaded; there are org.apache.kafka.common.replica.LeaderSelector and "
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
)

NO_KINIT = "the Kerberos library gets new tickets from the keytab in time; remove it"
NO_MECHANISM = "Java classes are not implemented; use GSSAPI, PLAIN, SCRAM or OAUTHBEARER and remove it"
NO_ENCODER = "passwords are not encoded anew; set those of dynamic configurations again and remove it"
NO_OTHER_ACLS = "ACLs are kept where zookeeper.connect says; remove authorizer.zookeeper.*"
NO_PLUGINS = "Java classes cannot be loaded; remove it"
NO_POLICIES = "policies are not implemented yet, every change would be let through; remove it"
NO_REVOCATION = "revoked certificates are not looked for; remove it, and let ZooKeeper's certificates expire soon"
NO_KRAFT = (
    "KRaft is not implemented; with process.roles=broker,controller a configuration of one node is read as a broker "
    "alone, in another remove it"
)
NO_REMOTE_STORAGE = "remote storage is not implemented; remove it"
NO_CONTROL_PLANE = "a separate listener for the controller is not implemented yet; remove it"
