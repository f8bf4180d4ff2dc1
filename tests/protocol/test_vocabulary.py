"""Names, ids and codes."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from protocol.api_keys import ApiKey
from protocol.errors import ApiError, DecodeError, ErrorCode
from protocol.topic_partition import TopicPartition, is_internal, validate_topic_name
from protocol.uuids import ZERO_UUID, Uuid
from tests.kit.environment import uuid_of


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "-"])
def test_legal_topic_names(name: str) -> None:
    validate_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        ("a/b", "Topic name is invalid: 'a/b' contains one or more characters other than ASCII alphanumerics"),
        ("../../etc", "contains one or more characters"),
        ("ü", "contains one or more characters"),
        ("a\n", "contains one or more characters"),
        ("x" * 250, "is longer than the max allowed length 249"),
    ],
)
def test_illegal_topic_names(name: str, reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        validate_topic_name(name)
    assert refused.value.error_code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert reason in refused.value.message


def test_topic_partition_reads_as_its_directory() -> None:
    assert str(TopicPartition("a-b", 12)) == "a-b-12"


def test_internal_topics() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert not is_internal("__mine")


def test_uuids_in_kafkas_text_form() -> None:
    assert str(ZERO_UUID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert str(uuid_of(2**128 - 1)) == "_____________________w"
    assert repr(ZERO_UUID) == "Uuid('AAAAAAAAAAAAAAAAAAAAAA')"
    for seed in range(50):
        value = Uuid(random.Random(seed).randbytes(16))
        assert Uuid.from_text(f"{value}") == value


def test_random_uuids_are_those_of_the_rfc() -> None:
    for seed in range(50):
        bits = random.Random(seed).getrandbits(128)
        ours, pythons = Uuid.version_4(bits), UUID(int=bits, version=4)
        assert (ours, ours.dashed()) == (pythons.bytes, str(pythons))


@pytest.mark.parametrize(
    "text", ["", "AAAA", "A" * 21, "A" * 23, "A" * 24, "!" * 22, "ä" * 22, "AAAAAAAAAAAAAAAAAAAAA+"]
)
def test_what_is_no_uuid(text: str) -> None:
    with pytest.raises(ValueError, match=r"URL-safe base64|an id has 16"):
        Uuid.from_text(text)


def test_error_codes() -> None:
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.INVALID_RECORD.retriable
    assert ErrorCode(6) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ErrorCode.of(-1) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.of(32000) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_errors_say_what_happened() -> None:
    assert str(ApiError(ErrorCode.INVALID_RECORD, "t-0")) == "INVALID_RECORD: t-0"
    assert str(ApiError(ErrorCode.INVALID_RECORD)) == "INVALID_RECORD"
    error = DecodeError("FetchRequest", 12, "topics.partitions", "too short")
    assert str(error) == "FetchRequest v12, field topics.partitions: too short"
    assert str(DecodeError("FetchRequest", 12, "", "2 bytes left over")) == "FetchRequest v12: 2 bytes left over"


def test_header_versions() -> None:
    assert ApiKey.FETCH.request_header_version(11) == 1
    assert ApiKey.FETCH.request_header_version(12) == 2
    assert ApiKey.FETCH.response_header_version(12) == 1
    assert ApiKey.API_VERSIONS.request_header_version(3) == 2
    assert ApiKey.API_VERSIONS.response_header_version(3) == 0
    assert ApiKey.SASL_HANDSHAKE.request_header_version(1) == 1
    assert ApiKey.CONTROLLED_SHUTDOWN.request_header_version(0) == 0
