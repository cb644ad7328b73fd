"""Strict YAML and configuration errors."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from zoo.config import Config, dump_yaml, load_yaml, parse
from zoo.errors import RecipeError


class Cat(Config):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1)] = 9


class Dog(Config):
    kind: Literal["dog"]
    tail: float


class House(Config):
    name: str
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []
    keeper: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    floor: Literal["ground", "attic"] = "ground"


def message(data: object) -> str:
    with pytest.raises(RecipeError) as error:
        parse(House, data, "house.yaml")
    text = str(error.value)
    assert text.startswith("house.yaml: ")
    assert "\n" not in text
    return text


def test_unknown_key_names_its_path_and_the_nearest_valid_key() -> None:
    text = message({"name": "a", "pets": [{"kind": "cat", "live": 3}]})
    assert 'unknown key "pets.0.live"' in text
    assert 'Did you mean "lives"?' in text
    assert "tail" not in text  # not a key of this member of the union


def test_wrong_type_says_what_was_found_and_expected() -> None:
    text = message({"name": "a", "pets": [{"kind": "dog", "tail": "long"}]})
    assert "\"pets.0.tail\": found 'long' (str), expected a valid number" in text
    assert "found True (bool)" in message({"name": "a", "keeper": {"kind": "cat", "lives": True}})


def test_wrong_choice_names_the_nearest() -> None:
    assert 'Did you mean "attic"?' in message({"name": "a", "floor": "atic"})
    text = message({"name": "a", "keeper": {"kind": "cta"}})
    assert '"keeper.kind": found "cta", expected one of cat, dog. Did you mean "cat"?' in text


def test_missing_keys_are_all_named() -> None:
    text = message({"pets": [{"kind": "dog"}]})
    assert 'missing key "name"' in text
    assert 'missing key "pets.0.tail"' in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.5e3", 1500.0),
        ("3", 3),
        ("-0.5", -0.5),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("'5'", "5"),
    ],
)
def test_yaml_reads_numbers_and_words_as_people_mean_them(text: str, value: object) -> None:
    read = load_yaml(f"a: {text}", "here")["a"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1, 2", "not valid YAML at line "),
        ("a: 1\na: 2", 'duplicate key "a" *'),
        ("a: 1\nb: *x", "line 2, column 4: aliases are not allowed"),
        ("a: &x [1]\nb: *x", "line 1, column 4: anchors are not allowed"),
        ("a: !!python/object/apply:os.system ['true']", "line 1"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested deeper than 32 levels"),
        ("x" * (1 << 18) + "y", "found 262,145 bytes"),
        ("? [a, b]\n: 1", "not valid YAML"),
    ],
)
def test_bad_yaml_is_one_line_that_says_where(text: str, problem: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_yaml(text, "bad.yaml")
    assert problem.rstrip(" *") in str(error.value)
    assert "\n" not in str(error.value)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=("Cs", "Cc")))
    | st.sampled_from(["1e-4", "no", "1_0", "~", "2020-01-01"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abcdef", min_size=1), plain, max_size=4))
def test_yaml_round_trip_loses_nothing(data: dict) -> None:
    assert load_yaml(dump_yaml(data), "round trip") == data


def test_dumped_yaml_means_the_same_to_other_readers() -> None:
    data = {"lr": 1e-05, "word": "1e-4", "no": "no", "list": [1.0, 2], "nested": {"x": [{"y": None}]}}
    assert yaml.safe_load(dump_yaml(data)) == data
