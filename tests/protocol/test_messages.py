"""Every declared message in every version: round trips, truncation, mutation, and the declarations themselves."""

from __future__ import annotations

import functools
import gc
import json
import mmap
import pkgutil
import random
import re
import tracemalloc
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import protocol.messages
from protocol.api_keys import NEVER_FLEXIBLE
from protocol.errors import DecodeError
from protocol.messages import REQUEST_TYPES, RESPONSE_TYPES
from protocol.messages.fetch import FetchRequest
from protocol.messages.headers import RequestHeader
from protocol.messages.topics import CreateTopicsRequest
from protocol.wire import decode_compiler
from protocol.wire.decode_compiler import DecodeCompiler, LazyArray
from protocol.wire.schema import Message, Request, Response, Struct, fields_of
from protocol.wire.wire_types import (
    ArrayOf,
    Blob,
    FieldSpec,
    Fixed,
    RecordsBlob,
    StructOf,
    Text,
    Versions,
    WireType,
    zero_of,
)
from tests.fuzz.mutation import mutated
from tests.kit.due import due
from tests.kit.heavy_requests import fetch_unknown
from tests.protocol.values import EVERY_VERSION, MESSAGES, OWN_TAG, DrawnSource, SeededSource, build

NEWER_THAN_3_9 = {"TransactionLogValue": {"PreviousProducerId", "NextProducerId", "ClientTransactionVersion"}}
"""Additional tagged fields in the available definitions of records, which are those of Kafka 4."""
SPEC = Path(__file__).parents[2].parent / "shared" / "spec"
FULL_FUZZ_FRAMES = 1_000_000


def decoded_in_slices(message: type[Message], encoded: bytes, version: int) -> Message:
    return finished(message.decoder_in_slices(version)(memoryview(b"head" + encoded), 4, lambda: True))


@functools.cache
def lazy_decoder(message: type[Message], version: int) -> Any:
    """A decoder that decodes every array lazily, however small it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_compiler, "LAZY_BYTES", 0)
        return DecodeCompiler(
            message, version, version >= message.flexible_version, fields_of, in_slices=True, lazy=paths_of(message, "")
        ).function


def paths_of(struct: type[Struct], prefix: str) -> frozenset[str]:
    """The paths of all arrays of a message."""
    paths = set()
    for spec in fields_of(struct):
        element = spec.type.element if isinstance(spec.type, ArrayOf) else spec.type
        if isinstance(spec.type, ArrayOf):
            paths.add(prefix + spec.name)
        if isinstance(element, StructOf):
            paths |= paths_of(element.struct, f"{prefix}{spec.name}.")
    return frozenset(paths)


def decoded_lazily(message: type[Message], encoded: bytes, version: int) -> Message:
    return finished(lazy_decoder(message, version)(memoryview(b"head" + encoded), 4, lambda: False))


def finished(decoding: Generator[None, None, Message]) -> Message:
    while True:
        try:
            next(decoding)
        except StopIteration as end:
            message: Message = end.value
            return message


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_round_trip_of_any_value(message: type[Message]) -> None:
    @settings(max_examples=8 * (message.max_version - message.min_version + 1), deadline=None, database=None,
              derandomize=True, suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data())
    def round_trip(data: st.DataObject) -> None:
        version = data.draw(st.integers(message.min_version, message.max_version))
        value = build(message, version, DrawnSource(data.draw))
        encoded = value.to_bytes(version)
        assert message.decode(memoryview(encoded), version) == value
        assert message.decode(encoded, version) == value
        assert message.decode_prefix(memoryview(encoded + b"\xff"), version) == (value, len(encoded))
        assert decoded_in_slices(message, encoded, version) == value
        lazy = decoded_lazily(message, encoded, version)
        assert lazy == value
        assert lazy.to_bytes(version) == encoded

    round_trip()


def test_every_truncation_is_a_decode_error() -> None:
    for message, version in EVERY_VERSION:
        encoded = next(
            data
            for seed in range(1000)
            if 0 < len(data := build(message, version, SeededSource(seed)).to_bytes(version)) < 600 or seed == 999
        )
        for size in range(len(encoded)):
            with pytest.raises(DecodeError) as malformed:
                message.decode(memoryview(encoded)[:size], version)
            with pytest.raises(DecodeError, match=re.escape(str(malformed.value))):
                decoded_in_slices(message, encoded[:size], version)
            with pytest.raises(DecodeError, match=re.escape(str(malformed.value))):
                decoded_lazily(message, encoded[:size], version)
            assert malformed.value.message_name == message.__name__


def test_a_large_array_is_decoded_as_it_is_looked_at() -> None:
    """999,000 elements of 26 bytes would take 160 MB."""
    count = 100_000
    body = memoryview(fetch_unknown(count))[4:]
    _, start = RequestHeader.decode_prefix(body, FetchRequest.api_key.request_header_version(11))
    decode = FetchRequest.decoder_in_slices(11, lazy=frozenset({"topics", "topics.partitions"}))
    tracemalloc.start()
    request = finished(decode(body, start, lambda: False))
    assert isinstance(request, FetchRequest)
    (topic,) = request.topics
    assert len(topic.partitions) == count
    for _ in range(2):
        assert sum(1 for each in topic.partitions if each.fetch_offset == 0) == count
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_what_was_decoded_lazily_is_in_no_cycle_once_it_is_cleared() -> None:
    """A cycle would keep the frame until a garbage collection, which may freeze it for an hour."""
    body = memoryview(fetch_unknown(10_000))[4:]
    _, start = RequestHeader.decode_prefix(body, FetchRequest.api_key.request_header_version(11))
    decode = FetchRequest.decoder_in_slices(11, lazy=frozenset({"topics", "topics.partitions"}))
    found: dict[int, Any] = {}
    buffer = mmap.mmap(-1, len(body))
    buffer[:] = body
    is_alive = weakref.ref(buffer)
    gc.disable()
    try:
        request = finished(decode(memoryview(buffer), start, lambda: False, found))
        assert isinstance(request, FetchRequest)
        assert sum(len(topic.partitions) for topic in request.topics) == 10_000
        found.clear()
        del request, buffer
        assert is_alive() is None
    finally:
        gc.enable()


def test_a_large_element_of_a_large_array_is_decoded_once() -> None:
    """Decoding it again on each access would take long, without a break."""
    topic = CreateTopicsRequest.CreatableTopic
    configs = [CreateTopicsRequest.CreatableTopicConfig(name=str(number), value="x") for number in range(2_000)]
    value = CreateTopicsRequest(
        topics=[
            topic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=configs if at == 1 else [])
            for at, name in enumerate("abc")
        ],
        timeout_ms=1,
    )
    decode = CreateTopicsRequest.decoder_in_slices(4, lazy=frozenset({"topics"}))
    request = finished(decode(memoryview(value.to_bytes(4)), 0, lambda: False))
    assert isinstance(request, CreateTopicsRequest)
    assert isinstance(request.topics, LazyArray)
    assert request == value
    first, second = (list(request.topics) for _ in range(2))
    assert [one is other for one, other in zip(first, second, strict=True)] == [False, True, False]


def fuzz(frames: int, seed: int) -> tuple[int, int]:
    """Decode mutants of every message: (accepted, refused). An accepted mutant can be encoded, and decodes to the same
    bytes.

    Bytes are compared, because a tagged struct of defaults becomes None: neither is written.
    """
    randomness = random.Random(seed)
    accepted = refused = 0
    originals = [
        (message, version, build(message, version, SeededSource(f"{seed} {index}")).to_bytes(version))
        for message, version in EVERY_VERSION
        for index in range(4)
    ]
    for index in range(frames):
        message, version, original = originals[index % len(originals)]
        mutant = mutated(original[:2000], randomness)
        try:
            value = message.decode(memoryview(mutant), version)
        except DecodeError:
            refused += 1
            continue
        accepted += 1
        if index % 16 == 0:
            encoded = value.to_bytes(version)
            assert message.decode(encoded, version).to_bytes(version) == encoded
    return accepted, refused


def test_mutants_decode_or_are_refused() -> None:
    accepted, refused = fuzz(30_000, seed=1)
    assert accepted > 1000
    assert refused > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", due(range(2, 6)))
def test_a_million_mutants_decode_or_are_refused(seed: int) -> None:
    fuzz(FULL_FUZZ_FRAMES // 4, seed)


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(st.sampled_from(EVERY_VERSION), st.binary(max_size=300))
def test_any_bytes_decode_or_are_refused(which: tuple[type[Message], int], data: bytes) -> None:
    message, version = which
    try:
        value = message.decode(memoryview(data), version)
    except DecodeError:
        return
    assert isinstance(value, message)


def test_every_family_is_imported_with_the_package() -> None:
    assert {each.name for each in pkgutil.iter_modules(protocol.messages.__path__)} < set(protocol.messages.__all__)


def test_requests_and_responses_come_in_pairs() -> None:
    assert set(REQUEST_TYPES) == set(RESPONSE_TYPES)
    for api_key, request in REQUEST_TYPES.items():
        response = RESPONSE_TYPES[api_key]
        assert request.__name__.removesuffix("Request") == response.__name__.removesuffix("Response")
        assert (request.min_version, request.max_version) == (response.min_version, response.max_version)
        assert request.flexible_version == response.flexible_version == api_key.flexible_version


def test_the_client_id_keeps_its_old_form_in_flexible_headers() -> None:
    header = RequestHeader(request_api_key=1, request_api_version=12, correlation_id=7, client_id="ab")
    assert header.to_bytes(2) == bytes.fromhex("0001 000c 00000007 0002 6162 00")


# -- the declarations against Kafka's definitions, where those are at hand


def kafka_definition(name: str) -> Any:
    for directory in ("kafka-3.9", "records"):
        path = SPEC / directory / f"{name}.json"
        if path.is_file():
            definition = json.loads(re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE))
            newer = NEWER_THAN_3_9.get(name, set())
            definition["fields"] = [field for field in definition["fields"] if field["name"] not in newer]
            return definition
    raise FileNotFoundError(name)


def versions(text: str) -> Versions:
    return Versions.parse("" if text == "none" else text)


def overlap(one: Versions, other: Versions) -> tuple[int, int] | None:
    low, high = max(one.low, other.low), min(one.high, other.high)
    return (low, high) if low <= high else None


def base_type(name: str, nullable: bool) -> WireType | None:
    match name:
        case "string":
            return Text(nullable)
        case "bytes":
            return Blob(nullable)
        case "records":
            return RecordsBlob(nullable)
        case _:
            return None


def default_of(definition: Any, spec: FieldSpec) -> Any:
    """Kafka's default of a field, in our representation."""
    given = definition.get("default")
    is_null = given == "null" or ("default" in definition and given is None)
    if is_null:
        return None
    if given is None:
        return list if isinstance(spec.type, ArrayOf) else zero_of(spec.type)
    match spec.type:
        case Fixed(name="bool"):
            return given in {True, "true"}
        case Fixed():
            return int(str(given), 0)
        case _:
            return given


def differences(
    path: str, struct: type[Struct], definitions: list[Any], common: dict[str, Any], within: Versions
) -> Iterator[str]:
    specs = [spec for spec in fields_of(struct) if overlap(spec.versions, within) and spec.tag != OWN_TAG]
    theirs = [definition for definition in definitions if overlap(versions(definition.get("versions", "0+")), within)]
    names = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", definition["name"]).lower() for definition in theirs]
    if names != [spec.name for spec in specs]:
        yield f"{path}: fields {[spec.name for spec in specs]}, Kafka's are {names}"
        return
    for spec, definition in zip(specs, theirs, strict=True):
        where = f"{path}.{spec.name}"
        span = overlap(versions(definition.get("versions", "0+")), within)
        if overlap(spec.versions, within) != span:
            yield f"{where}: versions {spec.versions}, Kafka's are {span}"
        assert span is not None
        nullable = overlap(versions(definition.get("nullableVersions", "")), Versions(*span))
        ours = overlap(spec.nullable_versions, Versions(*span)) if getattr(spec.type, "nullable", False) else None
        tagged_struct = spec.tag is not None and isinstance(spec.type, StructOf)
        if ours != nullable and not tagged_struct:
            yield f"{where}: nullable in {ours}, Kafka in {nullable}"
        if spec.tag != definition.get("tag"):
            yield f"{where}: tag {spec.tag}"
        partial = span != (within.low, within.high)
        if partial and spec.ignorable != bool(definition.get("ignorable")):
            yield f"{where}: ignorable {spec.ignorable}"
        if spec.always_classic != (definition.get("flexibleVersions") == "none"):
            yield f"{where}: always_classic {spec.always_classic}"
        nullish = {None, ""} if getattr(spec.type, "nullable", False) else set()
        default = default_of(definition, spec)
        has_default = partial or spec.tag is not None or "default" in definition
        if (
            has_default
            and spec.default != default
            and not (spec.default in nullish and default in nullish)
            and not tagged_struct
        ):
            yield f"{where}: default {spec.default!r}, Kafka's is {default!r}"
        yield from type_differences(where, spec, definition, common, Versions(*span))


def type_differences(
    where: str, spec: FieldSpec, definition: Any, common: dict[str, Any], span: Versions
) -> Iterator[str]:
    name = definition["type"]
    ours = spec.type
    if name.startswith("[]"):
        if not isinstance(ours, ArrayOf):
            yield f"{where}: not an array"
            return
        name, ours = name[2:], ours.element
    if isinstance(ours, StructOf):
        if ours.struct.__name__ != name:
            yield f"{where}: {ours.struct.__name__}, Kafka's is {name}"
        nested = definition.get("fields") or common[name]["fields"]
        yield from differences(where, ours.struct, nested, common, span)
    elif isinstance(ours, Fixed):
        if ours.name != name:
            yield f"{where}: {ours.name}, Kafka's is {name}"
    elif type(ours) is not type(base_type(name, nullable=False)):
        yield f"{where}: {ours}, Kafka's is {name}"


@pytest.mark.skipif(not SPEC.is_dir(), reason="Kafka's message definitions are not at hand")
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_declarations_are_kafkas(message: type[Message]) -> None:
    definition = kafka_definition(message.__name__)
    common = {struct["name"]: struct for struct in definition.get("commonStructs", [])}
    valid = versions(definition["validVersions"])
    assert (message.min_version, message.max_version) == valid
    flexible = versions(definition["flexibleVersions"])
    assert message.flexible_version == (flexible.low if flexible.low <= flexible.high else NEVER_FLEXIBLE)
    if issubclass(message, Request | Response):
        assert message.api_key == definition["apiKey"]
    found = list(differences(message.__name__, message, definition["fields"], common, valid))
    assert not found, found
