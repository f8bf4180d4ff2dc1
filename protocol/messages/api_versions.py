"""ApiVersions: the first request of every connection."""

from __future__ import annotations

from protocol.api_keys import ApiKey
from protocol.wire.schema import Request, Response, Struct, boolean, field, int16, int32, int64, string


class ApiVersionsRequest(Request, api_key=ApiKey.API_VERSIONS, versions="0-4"):
    """Asks which APIs and versions the broker serves.

    - v3: flexible; name and version of the client's software (KIP-511)
    - v4: features whose lowest level is 0 may be listed (KAFKA-17011)
    """

    client_software_name: string = field("3+", default="", ignorable=True)
    client_software_version: string = field("3+", default="", ignorable=True)


class ApiVersionsResponse(Response, api_key=ApiKey.API_VERSIONS, versions="0-4"):
    """The APIs that the broker serves. Its header never has tagged fields.

    - v1: throttle time
    - v3: flexible; supported and finalized features (KIP-584)
    - v4: supported features may start at level 0
    """

    class ApiVersion(Struct):
        """The versions of one API, both ends included."""

        api_key: int16
        min_version: int16
        max_version: int16

    class SupportedFeatureKey(Struct):
        """The levels of a feature that this broker could run."""

        name: string
        min_version: int16
        max_version: int16

    class FinalizedFeatureKey(Struct):
        """The level of a feature that the cluster runs."""

        name: string
        max_version_level: int16
        min_version_level: int16

    error_code: int16
    api_keys: list[ApiVersion]
    throttle_time_ms: int32 = field("1+", default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0, default=[], ignorable=True)
    finalized_features_epoch: int64 = field("3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2, default=[], ignorable=True)
    zk_migration_ready: boolean = field("3+", tag=3, default=False, ignorable=True)
