"""Parsing and limits of single keys, with Kafka's wording."""

from __future__ import annotations

import time

import pytest

from config.broker_keys import BROKER_KEYS
from config.definitions import ConfigError, ConfigKey, ConfigType, Matching, OneOf, Range, RangeOr, table, value_to_text
from config.topic_config import BROKER_SYNONYMS, TOPIC_KEYS


def key(value_type: ConfigType, valid: object = None) -> ConfigKey:
    return ConfigKey("some.key", value_type, None, "", valid)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value_type", "text", "value"),
    [
        (ConfigType.INT, " 5 ", 5),
        (ConfigType.INT, "+5", 5),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.SHORT, "-1", -1),
        (ConfigType.BOOLEAN, "TRUE", True),
        (ConfigType.BOOLEAN, " false", False),
        (ConfigType.DOUBLE, "1e-5", 1e-5),
        (ConfigType.DOUBLE, ".5", 0.5),
        (ConfigType.DOUBLE, "5d", 5.0),
        (ConfigType.STRING, "  a b ", "a b"),
        (ConfigType.LIST, " a , b ", ("a", "b")),
        (ConfigType.LIST, "", ()),
        (ConfigType.LIST, "a,,b", ("a", "", "b")),
        (ConfigType.PASSWORD, "x", "x"),
        (ConfigType.INT, "-" + "0" * 6000 + "5", -5),
        (ConfigType.DOUBLE, "5.d", 5.0),
    ],
)
def test_values(value_type: ConfigType, text: str, value: object) -> None:
    assert key(value_type).parse(text) == value


@pytest.mark.parametrize(
    ("value_type", "text", "reason"),
    [
        (ConfigType.INT, "2147483648", "Not a number of type INT"),
        (ConfigType.INT, "1_000", "Not a number of type INT"),
        (ConfigType.INT, "", "Not a number of type INT"),
        (ConfigType.INT, "1.0", "Not a number of type INT"),
        (ConfigType.SHORT, "32768", "Not a number of type SHORT"),
        (ConfigType.LONG, "-9223372036854775809", "Not a number of type LONG"),
        (ConfigType.DOUBLE, "half", "Not a number of type DOUBLE"),
        (ConfigType.DOUBLE, "1_0", "Not a number of type DOUBLE"),
        (ConfigType.BOOLEAN, "yes", "Expected value to be either true or false"),
    ],
)
def test_texts_that_are_no_values(value_type: ConfigType, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        key(value_type).parse(text)
    assert str(caught.value) == f"Invalid value {text} for configuration some.key: {reason}"
    assert (caught.value.name, caught.value.value, caught.value.reason) == ("some.key", text, reason)


@pytest.mark.parametrize(
    ("valid", "value_type", "text", "message"),
    [
        (Range(1), ConfigType.INT, "0", "Invalid value 0 for configuration some.key: Value must be at least 1"),
        (Range(0, 1), ConfigType.DOUBLE, "1.5",
         "Invalid value 1.5 for configuration some.key: Value must be no more than 1"),
        (RangeOr(1, 9, -1), ConfigType.INT, "0",
         "Invalid value 0 for configuration some.key: Value must be between 1 and 9 or equal to -1"),
        (OneOf(("a", "b")), ConfigType.STRING, "c",
         "Invalid value c for configuration some.key: String must be one of: a, b"),
        (OneOf(("a", "b")), ConfigType.LIST, "a,c",
         "Invalid value c for configuration some.key: String must be one of: a, b"),
        (Matching("[0-9]", "{name} is no digit: {value}"), ConfigType.STRING, "x",
         "Invalid value x for configuration some.key: some.key is no digit: x"),
        (Matching("[0-9]", "no digits"), ConfigType.LIST, "1,x",
         "Invalid value [1, x] for configuration some.key: no digits"),
    ],
)  # fmt: skip
def test_bounds(valid: object, value_type: ConfigType, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        key(value_type, valid).parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1e-5, "1.0E-5"),
        (0.001, "0.001"),
        (1.0, "1.0"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1.25e-7, "1.25E-7"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
        (True, "true"),
        (("a", "b"), "a,b"),
        (5, "5"),
        (None, None),
        ("x", "x"),
    ],
)
def test_values_in_javas_notation(value: object, text: str | None) -> None:
    assert value_to_text(value) == text  # type: ignore[arg-type]


LONG = 30_000


@pytest.mark.parametrize(
    "text", ["9" * LONG, "0" * LONG + "x", "1." + "0" * LONG + "x", "0" * LONG + "1" * 30, "1e" + "0" * LONG + "x"]
)
@pytest.mark.parametrize("value_type", [ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE])
def test_long_texts_take_no_time(value_type: ConfigType, text: str) -> None:
    """A client that may alter a configuration may send 32,767 characters."""
    began_s = time.process_time()
    try:
        key(value_type).parse(text)
    except ConfigError as error:
        assert f"Not a number of type {value_type.name}" in str(error)
    else:
        assert value_type is ConfigType.DOUBLE
    assert time.process_time() - began_s < 0.2


def test_long_lists_take_no_time() -> None:
    began_s = time.process_time()
    assert key(ConfigType.LIST).parse("a" + " " * LONG + "b , c") == ("a" + " " * LONG + "b", "c")
    assert time.process_time() - began_s < 0.2


def test_a_key_is_declared_once() -> None:
    with pytest.raises(ValueError, match=r"some\.key is declared twice"):
        table([key(ConfigType.INT), key(ConfigType.INT)])


@pytest.mark.parametrize("keys", [BROKER_KEYS, TOPIC_KEYS])
def test_every_default_is_a_value_of_its_key(keys: dict[str, ConfigKey]) -> None:
    for declared in keys.values():
        if declared.default is None:
            continue
        text = value_to_text(declared.default)
        assert declared.parse(text) == declared.default, declared.name


@pytest.mark.parametrize("keys", [BROKER_KEYS, TOPIC_KEYS])
def test_every_key_has_a_sentence(keys: dict[str, ConfigKey]) -> None:
    for declared in keys.values():
        assert declared.doc.endswith("."), declared.name
        assert 10 < len(declared.doc) < 130, declared.name


def test_a_topic_key_and_its_broker_keys_agree() -> None:
    for topic_key, broker_keys in BROKER_SYNONYMS.items():
        assert BROKER_KEYS[broker_keys[0]].type in (TOPIC_KEYS[topic_key].type, ConfigType.LONG)
        assert all(name in BROKER_KEYS for name in broker_keys)
