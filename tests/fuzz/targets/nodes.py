"""Znodes of security: ACLs and their notices, delegation tokens, quotas and SCRAM credentials.

Writers of these nodes are trusted, but a damaged node must be recognized, and a sound one must be read correctly.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from cluster.quotas.alterations import check_config, limit_of, shown_quotas
from cluster.quotas.client_quota import MAX_THROTTLE_MS, Rate, TokenBucket, throttle_time_ms
from cluster.quotas.entities import DEFAULT, EntityType, QuotaEntity
from cluster.security.acl_znodes import decode_acls, decode_change, encode_acls, encode_change
from cluster.security.delegation_token import DelegationToken
from cluster.security.scram_changes import iterations_of
from cluster.znodes import ZnodeFormatError, decode_config, encode_config
from config.broker_keys import CLIENT_QUOTA_KEYS, IP_QUOTA_KEYS
from protocol.acl_types import PatternType, title
from protocol.errors import ApiError
from security.sasl_exchange import ScramCredential
from tests.cluster.security.naive_acls import draw_binding
from tests.fuzz.mutation import mutated, mutated_text, put_together
from tests.fuzz.runner import Target, Trial

WORDS = (
    *('"', "{", "}", "[", "]", ",", ":", "null", "true", "0", "1", "3", "-1", "1e999", "NaN", "Infinity", "1.5", '""'),
    *(
        '"version"',
        '"acls"',
        '"principal"',
        '"host"',
        '"Read"',
        '"Deny"',
        '"ALL"',
        '"User:x"',
        '"\\ud800"',
        '"\\u0000"',
    ),
    *("{}", "[]", "[[", '{"a":', "9" * 30, "é", "%", "%4", "+", "/", '"config"', '"owner"', '"renewers"', '"name"'),
)


class NodeCase(NamedTuple):
    """The data of a node. `is_whole` says that it must be readable."""

    kind: str
    data: bytes
    is_whole: bool = False


def _drawn(kind: str, text: str, draw: random.Random) -> NodeCase:
    match draw.randrange(6):
        case 0:
            return NodeCase(kind, text.encode(), is_whole=True)
        case 1:
            return NodeCase(kind, mutated(text.encode(), draw))
        case 2:
            return NodeCase(kind, put_together(WORDS, draw, 20).encode())
        case _:
            return NodeCase(kind, mutated_text(text, draw, WORDS).encode())


# -- ACLs --------------------------------------------------------------------------------------------------------------


class Acls:
    """The entries of a pattern, and both kinds of notices."""

    def make(self, draw: random.Random) -> NodeCase:
        binding = draw_binding(draw)
        pattern = binding.pattern
        if draw.random() < 0.3:
            return _drawn(pattern.pattern_type.name, encode_change(pattern).decode(), draw)
        entries = [draw_binding(draw).entry for _ in range(draw.randrange(4))]
        acls = [
            {
                "principal": each.principal,
                "permissionType": title(each.permission),
                "host": each.host,
                "operation": title(each.operation),
            }
            for each in entries
        ]
        return _drawn("entries", json.dumps({"version": 1, "acls": acls}), draw)

    def check(self, case: NodeCase) -> bool:
        try:
            if case.kind == "entries":
                entries = decode_acls("/x", case.data)
                assert decode_acls("/x", encode_acls(entries)) == entries
            else:
                pattern = decode_change(PatternType[case.kind], "/x", case.data)
                assert decode_change(pattern.pattern_type, "/x", encode_change(pattern)) == pattern
        except ZnodeFormatError:
            assert not case.is_whole
            return False
        return True


# -- delegation tokens -------------------------------------------------------------------------------------------------


class Tokens:
    """Tokens of all versions."""

    def make(self, draw: random.Random) -> NodeCase:
        value: dict[str, Any] = {
            "version": draw.choice([1, 2, 3]),
            "owner": draw.choice(["User%3Aalice", "User:bob", "User%3A%C3%A9"]),
            "tokenRequester": "User%3Acarol",
            "renewers": draw.choice([[], ["User%3Adave"], ["User%3Adave", "User%3A"]]),
            "issueTimestamp": 1_700_000_000_000,
            "maxTimestamp": draw.choice([1_700_000_600_000, 2**63 - 1, 0]),
            "expiryTimestamp": 1_700_000_100_000,
            "tokenId": "abc",
        }
        return _drawn("token", json.dumps(value), draw)

    def check(self, case: NodeCase) -> bool:
        try:
            token = DelegationToken.decode("abc", case.data)
        except ZnodeFormatError:
            assert not case.is_whole
            return False
        assert DelegationToken.decode("abc", token.encode()) == token
        token.has_expired(1_700_000_050_000)
        return True


# -- configurations of users, clients and addresses --------------------------------------------------------------------

NUMBERS = (
    *(
        "0",
        "1",
        "-1",
        "1048576",
        "1.5",
        "1e3",
        "1e999",
        "NaN",
        "Infinity",
        "-Infinity",
        "0x1p3",
        "1_000",
        "٣",
        "",
        " 7 ",
    ),
    *("9" * 30, "1d", "1F", "-0.0", "1e-320", ".5", "5.", "+5", "5e", "d", "\0"),
)
KEYS = (*CLIENT_QUOTA_KEYS, *IP_QUOTA_KEYS)
CREDENTIAL = "salt=c2FsdA==,stored_key=AAAA,server_key=AAAA,iterations=4096"
NAMES = (
    "alice",
    "<default>",
    "",
    "a%2Fb",
    "%",
    "%4",
    "%zz",
    "+",
    "alice/clients/app",
    "a/clients/<default>",
    "a/b",
    "é",
)


class QuotaCase(NamedTuple):
    """An entity's name, kind and configuration."""

    kind: EntityType
    name: str
    data: bytes
    is_whole: bool


class Quotas:
    """Limits, and the credentials stored in the same node."""

    def make(self, draw: random.Random) -> QuotaCase:
        config = {key: draw.choice(NUMBERS) for key in draw.sample(KEYS, draw.randrange(4))}
        if draw.random() < 0.3:
            config["SCRAM-SHA-256"] = mutated_text(CREDENTIAL, draw, ("=", ",", "salt=", "iterations=", "9", "é", "\0"))
        text = json.dumps({"version": 1, "config": config})
        name = draw.choice(NAMES) if draw.random() < 0.7 else mutated_text(draw.choice(NAMES), draw, ("%", "/", "2F"))
        case = _drawn("", text, draw)
        return QuotaCase(draw.choice(list(EntityType)), name, case.data, case.is_whole)

    def check(self, case: QuotaCase) -> bool:
        entity = QuotaEntity.of((case.kind, case.name))
        if entity is not None:
            assert QuotaEntity.of(entity.resource) == entity
        try:
            config = decode_config("/x", case.data)
        except ZnodeFormatError:
            assert not case.is_whole
            return False
        assert decode_config("/x", encode_config(config)) == config
        for key in KEYS:
            limit = limit_of(config, key)
            if limit is not None:
                _check_limit(limit)
        shown = entity or QuotaEntity(user=DEFAULT)
        reads: tuple[Callable[[], object], ...] = (
            lambda: shown_quotas(shown, config),
            lambda: check_config(shown, config),
            lambda: iterations_of(config),
        )
        for read in reads:
            with suppress(ApiError):
                read()
        text = config.get("SCRAM-SHA-256")
        try:
            return text is None or ScramCredential.from_text(ScramCredential.from_text(text).to_text()) is not None
        except ValueError:
            return False


def _check_limit(limit: float) -> None:
    """With any configuration, the throttle time must fit in a response."""
    rate, bucket = Rate(11, 1000), TokenBucket(11, 1000)
    for now_ms in (1000, 1000, 2500, 90_000):
        rate.record(5000, now_ms)
        bucket.take(5, limit, now_ms)
        for time_ms in (
            throttle_time_ms(rate.measure(now_ms), limit, rate.length_ms(now_ms)),
            bucket.throttle_time_ms(limit, now_ms),
        ):
            assert 0 <= time_ms <= MAX_THROTTLE_MS


@contextmanager
def acls() -> Iterator[Trial]:
    """See `Acls`."""
    yield Acls()


@contextmanager
def tokens() -> Iterator[Trial]:
    """See `Tokens`."""
    yield Tokens()


@contextmanager
def quotas() -> Iterator[Trial]:
    """See `Quotas`."""
    yield Quotas()


TARGETS = (Target("acl-nodes", 100, acls), Target("token-nodes", 80, tokens), Target("quota-nodes", 80, quotas))
