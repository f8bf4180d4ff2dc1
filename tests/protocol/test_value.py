"""Values: the methods that a class gets from the declaration of its fields."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from protocol.value import Value, field


class Place(Value):
    """Two fields."""

    limit: ClassVar[int] = 7
    host: str
    port: int = 9092


class Rack(Place):
    """A field more."""

    rack: str = "r"


class Place2(Value):
    """The fields of `Place`."""

    host: str
    port: int = 9092


class Empty(Value):
    """No fields."""


class Tally(Value, frozen=False):
    """Mutable."""

    count: int = 0
    names: list[str] = field(default_factory=list)
    place: int = field(default=-1, compare=False)


class Identity(Value, frozen=False, eq=False):
    """Compared by identity."""

    number: int


class Doubled(Value, kw_only=True):
    """A field derived from another."""

    number: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.number)


def test_fields_are_set_by_position_and_by_name() -> None:
    assert [Place("a").host, Place("a").port, Place(port=1, host="b").port] == ["a", 9092, 1]
    assert Place.limit == Place("a").limit == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Place, "missing 1 required positional argument: 'host'"),
        (lambda: Place("a", 1, 2), "takes from 2 to 3 positional arguments but 4 were given"),
        (lambda: Place("a", prot=1), "unexpected keyword argument 'prot'"),
        (lambda: Place("a").replace(prot=1), "unexpected keyword argument 'prot'"),
        (lambda: Doubled(1), "takes 1 positional argument but 2 were given"),
        (lambda: Doubled(number=1, double=3), "unexpected keyword argument 'double'"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, message: str) -> None:
    for _ in range(2):  # the first instance of a class is created differently
        with pytest.raises(TypeError, match=message):
            make()


def test_a_subclass_has_the_fields_of_its_base_first_even_when_the_base_has_instances() -> None:
    Place("a")
    rack = Rack("a", 1, "x")
    assert (rack.host, rack.port, rack.rack) == ("a", 1, "x")
    assert repr(rack) == "Rack(host='a', port=1, rack='x')"


def test_values_are_equal_when_their_types_and_fields_are() -> None:
    assert Place("a") == Place("a", 9092)
    assert hash(Place("a")) == hash(Place("a", 9092))
    assert len({Place("a"), Place("b"), Place("a", 1), Place("a")}) == 3
    assert Place("a") != Place2("a")
    assert Place("a") != ("a", 9092)
    assert Empty() == Empty()
    assert Empty() != Place("a")


def test_a_mutable_value_has_no_hash_and_a_default_of_its_own() -> None:
    one, other = Tally(), Tally(place=3)
    assert one == other
    one.names.append("x")
    assert other.names == []
    assert one != other
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_identity() -> None:
    one, other = Identity(1), Identity(1)
    assert one == one
    assert one != other
    assert len({one, other}) == 2


def test_instances_have_no_dictionary() -> None:
    with pytest.raises(AttributeError):
        object.__setattr__(Rack("a"), "other", 1)


def test_a_copy_with_changes_computes_again_what_follows() -> None:
    assert Place("a", 1).replace(host="b") == Place("b", 1)
    changed = Doubled(number=2).replace(number=5)
    assert (changed.number, changed.double) == (5, 10)
    assert Tally(1, ["x"]).fields() == {"count": 1, "names": ["x"], "place": -1}


def test_patterns() -> None:
    match Place("a", 3):
        case Place(host, 3):
            assert host == "a"
        case _:
            pytest.fail("no match")
