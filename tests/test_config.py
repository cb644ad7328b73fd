"""Strict YAML and configuration errors."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from zoo.config import Config, dump_yaml, load_yaml, named_by, parse
from zoo.errors import RecipeError, did_you_mean
from zoo.files import read_text


class Cat(Config):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1)] = 9


class Dog(Config):
    kind: Literal["dog"]
    tail: float


class House(Config):
    name: str
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind"), named_by("kind")]] = []
    keeper: Annotated[Cat | Dog, Field(discriminator="kind"), named_by("kind")] | None = None
    floor: Literal["ground", "attic"] = "ground"
    yard: bool = False


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"pets": [{"kind": "cat", "live": 3}]}, '"pets.0.live". Did you mean "lives"? Valid keys: kind'),
        ({"pets": [{"kind": "dog", "tail": "x"}]}, "\"pets.0.tail\": found 'x' (str), expected a valid"),
        ({"floor": "atic"}, 'Did you mean "attic"?'),
        ({"keeper": {"kind": "cta"}}, "\"keeper.kind\": found 'cta' (str)"),
        ({"pets": [{"kind": "dog"}], "floor": 1}, 'missing key "pets.0.tail"; "floor": found 1 (int)'),
        ({"keeper": "dog"}, 'missing key "keeper.tail"'),
        ({"pets": ["cta"]}, "\"pets.0.kind\": found 'cta'"),
        ({"pets": 3}, '"pets": found 3 (int), expected a valid list'),
        (load_yaml("name: on\nyard: no", "house.yaml"), "\"yard\": found 'no' (str), expected true or false"),
    ],
)
def test_an_error_names_path_found_expected_and_nearest(data: dict[str, Any], expected: str) -> None:
    with pytest.raises(RecipeError) as error:
        parse(House, {"name": "a", **data}, "house.yaml")
    assert str(error.value).startswith("house.yaml: ") and "\n" not in str(error.value)
    assert expected in str(error.value) and '"name"' not in str(error.value)


def test_a_section_that_needs_nothing_but_its_name_may_be_given_by_it() -> None:
    found = parse(House, {"name": "a", "pets": [{"kind": "dog", "tail": 1.0}, "cat"], "keeper": "cat"}, "h")
    assert found.pets[1] == found.keeper == Cat(kind="cat")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1, 2", "line 1"),
        ("a: 1\na: 2", 'duplicate key "a"'),
        ("a: 1\nb: *x", "anchor"),
        ("a: &x [1]\nb: 1", "line 1, column 4"),
        ("a: !!python/object/apply:os.system ['true']", "os.system"),
        ("a: " + "[" * 40 + "]" * 40, "levels"),
        ("x" * (1 << 18) + "y", "found 262,145 bytes"),
    ],
)
def test_bad_yaml_is_one_line_that_says_where(text: str, problem: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_yaml(text, "bad.yaml")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


words = st.text(st.characters(blacklist_categories=("Cs", "Cc")))
odd = st.sampled_from(["1e-4", "no", "1_0", "~", "2020-01-01", "0x10"])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | words | odd,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text("abcdef", min_size=1), plain, max_size=4))
def test_yaml_round_trip_loses_nothing_for_us_or_for_other_readers(data: dict[str, Any]) -> None:
    assert load_yaml(dump_yaml(data), "round trip") == data == yaml.safe_load(dump_yaml(data))


def test_what_is_no_text_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gigantic").touch()
    os.truncate(tmp_path / "gigantic", 50 << 30)  # a hole: takes no space
    for file in tmp_path.iterdir():
        with pytest.raises(RecipeError, match=r"found (no regular file|53,687,091,200 bytes, expected)"):
            read_text(file, RecipeError)


@pytest.mark.parametrize(
    ("found", "choices", "near"),
    [
        ("TAU", ["tau", "beta"], "tau"),
        ("paco", ["cifar_resnet20.paco_digits", "resnet50.paco_in1k", "moco"], "resnet50.paco_in1k"),
        ("a.paco_digits", ["a.ce_digits", "a.paco_digits_lt50_e100", "a.paco_digits_lt"], "a.paco_digits_lt"),
        ("cat", ["concatenate"], ""),
    ],
)
def test_the_nearest_name_is_near(found: str, choices: list[Any], near: str) -> None:
    assert did_you_mean(found, choices) == (f' Did you mean "{near}"?' if near else "")
