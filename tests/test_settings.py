from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from vitreous import settings
from vitreous.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Apple:
    lr: float = 0.1  # how fast
    core: int = 3


@dataclass(frozen=True, kw_only=True)
class Pear:
    lr: float = 0.2
    shape: Literal["round", "long"] = "long"


@dataclass(frozen=True, kw_only=True)
class Basket:
    """Comments inside docstrings are not help: # no."""

    fruit: Apple | Pear = field(default_factory=Apple)  # what is inside
    size: tuple[int, int] = (2, 3)
    rates: tuple[float, ...] = ()
    name: str | None = None
    limit: int | None = 5  # at most
    lid: bool = False
    extra: Apple | None = None


@dataclass(frozen=True, kw_only=True)
class Crate:
    apples: tuple[Apple, ...] = ()


def test_json_round_trip_is_exact():
    basket = Basket(fruit=Pear(lr=1 / 3, shape="round"), rates=(0.1, 1e-30), name="a", limit=None, extra=Apple(core=7))
    data = settings.to_json(basket)
    assert data["fruit"]["kind"] == "Pear"
    assert settings.from_json(Basket, data) == basket


def test_file_round_trip(tmp_path):
    basket = Basket(rates=(0.1 + 0.2,))
    settings.save(basket, tmp_path / "basket.json")
    assert settings.load(Basket, tmp_path / "basket.json") == basket


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"siez": [2, 3]}, "no field 'siez' in Basket. Did you mean size?"),
        ({"size": [2]}, "Basket.size: [2] is not int,int"),
        ({"lid": 1}, "Basket.lid: 1 is not true or false"),
        ({"limit": 2.5}, "Basket.limit: 2.5 is not int or none"),
        ({"fruit": {"kind": "Aple"}}, "'Aple' is not one of Apple, Pear. Did you mean Apple?"),
        ({"fruit": {"kind": "Pear", "shape": "square"}}, "'square' is not one of round, long"),
    ],
)
def test_bad_json_is_named(data, message):
    with pytest.raises(UserError) as error:
        settings.from_json(Basket, data)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_field_that_became_a_choice_still_reads_old_files():
    assert settings.from_json(Basket, {"fruit": {"lr": 0.5, "core": 1}}) == Basket(fruit=Apple(lr=0.5, core=1))


@dataclass(frozen=True, kw_only=True)
class Cellar:
    MOVED: ClassVar[Mapping[str, str]] = {"lid": "basket.lid"}

    basket: Basket = Basket()
    cold: bool = True


def test_a_field_that_went_into_a_part_may_be_named_as_it_was():
    found = settings.from_json(Cellar, {"lid": True, "cold": False})
    assert found == Cellar(basket=Basket(lid=True), cold=False)
    assert settings.from_json(Cellar, {"lid": False, "basket": {"lid": True}}).basket.lid, "the new name counts"
    assert settings.changed(Cellar(), {"lid": "true"}) == Cellar(basket=Basket(lid=True))
    assert settings.to_json(found).keys() == {"basket", "cold"}


def test_changes_by_dotted_name():
    changed = settings.changed(
        Basket(),
        {"fruit.lr": "3e-3", "size": "48x64", "rates": "0.1,0.2", "name": "none", "limit": "1_000", "lid": "yes"},
    )
    assert changed == Basket(fruit=Apple(lr=3e-3), size=(48, 64), rates=(0.1, 0.2), name=None, limit=1000, lid=True)


def test_a_kind_is_switched_in_any_order_and_keeps_what_is_shared():
    changed = settings.changed(Basket(fruit=Apple(lr=0.7)), {"fruit.shape": "round", "fruit.kind": "Pear"})
    assert changed.fruit == Pear(lr=0.7, shape="round")


def test_a_part_that_was_left_out_comes_in_with_its_defaults():
    assert settings.changed(Basket(), {"extra.core": "9"}).extra == Apple(core=9)


def test_one_of_several_parts_is_changed_by_its_number():
    basket = Crate(apples=(Apple(), Apple(lr=0.5)))
    changed = settings.changed(basket, {"apples.1.core": "9"})
    assert changed == Crate(apples=(Apple(), Apple(lr=0.5, core=9)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("apples.2.core", "--apples.2.core: name one of the 2 by its number (0 to 1), and the field to change"),
        ("apples.core", "by its number (0 to 1)"),
        ("apples.0", "and the field to change"),
        ("apples.0.cone", "--apples.0.cone: there is no such setting"),
    ],
)
def test_a_wrong_number_is_named(name, message):
    with pytest.raises(UserError) as error:
        settings.changed(Crate(apples=(Apple(), Apple())), {name: "1"})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fruit.rl": "1"}, "--fruit.rl: there is no such setting. Did you mean --fruit.lr"),
        ({"lr": "1"}, "Did you mean --fruit.lr?"),
        ({"fruit.lr": "fast"}, "--fruit.lr: 'fast' is not float"),
        ({"size": "64"}, "--size: '64' is not int,int: give 2 values, such as 64,64."),
        ({"fruit.kind": "Plum"}, "not one of Apple, Pear"),
        ({"fruit": "Pear"}, "--fruit is a group of settings"),
        ({"lid.x": "1"}, "no such setting"),
        ({"qqq": "1"}, "--qqq: there is no such setting. --help lists"),
    ],
)
def test_bad_changes_are_named(changes, message):
    with pytest.raises(UserError) as error:
        settings.changed(Basket(), changes)
    assert message in str(error.value)


def test_fields_carry_their_comments():
    shown = {f.name: f for f in settings.fields(Basket())}
    assert shown["fruit.kind"].type == "one of Apple, Pear"
    assert shown["fruit.kind"].help == "what is inside"
    assert shown["fruit.lr"].help == "how fast"
    assert shown["limit"].help == "at most"
    assert shown["size"].help == ""


@dataclass(frozen=True, kw_only=True)
class Jar:
    FORMAT = 2

    fruit: Apple = field(default_factory=Apple)


def test_what_is_kept_for_long_has_a_version():
    stored = settings.to_json(Jar())
    assert stored == {"format": 2, "fruit": {"lr": 0.1, "core": 3}}
    old = {name: value for name, value in stored.items() if name != "format"}
    for data in (stored, old, {**stored, "format": 1}):
        assert settings.from_json(Jar, data) == Jar()
    # Said before anything else of it is read: a later format has fields that this one does not know.
    with pytest.raises(UserError, match=r"jar\.json: written by a later version .*format 3; this one reads up to 2"):
        settings.from_json(Jar, {"format": 3, "lid": True}, where="jar.json")
    for number in (0, True, "2", None):
        with pytest.raises(UserError, match="not a version number"):
            settings.from_json(Jar, {"format": number})
    assert [one.name for one in settings.fields(Jar())] == ["fruit.lr", "fruit.core"]


def test_a_class_is_read_once_however_often_it_is_shown(monkeypatch):
    """Its comments are its source and its types are evaluated: help of a hundred fields would take a second."""

    @dataclass(frozen=True, kw_only=True)
    class Plum:
        stone: bool = True  # not to be eaten
        weight: float = 0.1
        name: str = ""

    read = []
    source = settings.inspect.getsource
    monkeypatch.setattr(settings.inspect, "getsource", lambda cls: (read.append(cls), source(cls))[1])
    assert settings.fields(Plum()) == settings.fields(Plum())
    assert settings.fields(Plum())[0].help == "not to be eaten"
    assert read == [Plum]
