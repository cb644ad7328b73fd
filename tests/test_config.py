"""Strict YAML and configuration errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from zoo import catalog
from zoo.config import Config, dump_yaml, load_yaml, named_by, parse
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.recipe import Recipe


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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"name": "a", "pets": [{"kind": "cat", "live": 3}]},
            'key "pets.0.live". Did you mean "lives"? Valid',
        ),
        ({"name": "a", "pets": [{"kind": "cat", "live": 3}]}, "keys: kind, lives"),
        (
            {"name": "a", "pets": [{"kind": "dog", "tail": "x"}]},
            "\"pets.0.tail\": found 'x' (str), expected a",
        ),
        ({"name": "a", "keeper": {"kind": "cat", "lives": True}}, "found True (bool)"),
        ({"name": "a", "floor": "atic"}, 'Did you mean "attic"?'),
        (
            {"name": "a", "keeper": {"kind": "cta"}},
            "found 'cta' (str), expected one of 'cat', 'dog'. Did you",
        ),
        ({"pets": [{"kind": "dog"}]}, 'missing key "name"; missing key "pets.0.tail"'),
        ({"name": "a", "keeper": "dog"}, 'missing key "keeper.tail"'),
        ({"name": "a", "pets": ["cta"]}, "\"pets.0.kind\": found 'cta'"),
    ],
)
def test_an_error_names_path_found_expected_and_nearest(data: object, expected: str) -> None:
    with pytest.raises(RecipeError) as error:
        parse(House, data, "house.yaml")
    assert str(error.value).startswith("house.yaml: ") and "\n" not in str(error.value)
    assert expected in str(error.value)


def test_a_section_that_needs_nothing_but_its_name_may_be_given_by_it() -> None:
    found = parse(House, {"name": "a", "pets": [{"kind": "dog", "tail": 1.0}, "cat"], "keeper": "cat"}, "h")
    assert found.pets[1] == found.keeper == Cat(kind="cat")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer=sgd", "\"optimizer\": found 'sgd' (str), expected a mapping with the keys name, lr, "),
        ("init=timm:resnet18.a1_in1k", "expected a mapping with the keys release, head, freeze"),
        ("training.ema=true", "found True (bool), expected a mapping with the keys decay, warmup"),
        ("backbone.args=3", '"backbone.args": found 3 (int), expected a valid dictionary'),
        ("objective.loss=balanced", 'Did you mean "balanced_softmax"?'),
        ("objective.loss={name: ldam, margin: 1}", '"objective.loss.margin". Did you mean "max_margin"?'),
    ],
)
def test_what_is_no_section_is_answered_with_the_keys_or_words_of_one(override: str, expected: str) -> None:
    with pytest.raises(RecipeError) as error:
        Recipe.load("cifar_resnet20.ce_digits_lt50", [override])
    assert expected in str(error.value)


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
        ("a: 1\nb: *x", "line 2, column 4: anchors, aliases and tags are not allowed"),
        ("a: &x [1]\nb: 1", "line 1, column 4: anchors, aliases and tags are not allowed"),
        ("a: !!python/object/apply:os.system ['true']", "tags are not allowed"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("a: " + "[" * 3000 + "]" * 3000, "nest"),
        ("x" * (1 << 18) + "y", "found 262,145 bytes"),
        ("? [a, b]\n: 1", "not valid YAML"),
        ("a: !!binary //8=", "tags are not allowed"),
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


def test_what_a_file_says_is_shown_on_one_line_that_no_terminal_obeys() -> None:
    for text in ('"a\\u2028b\\x85\\e[2J\\u202e": 1', f"{'x' * 100_000}: 1"):
        with pytest.raises(ZooError) as caught:
            parse(Cat, load_yaml(text, "here"), "here")
        found = str(caught.value)
        assert len(found.splitlines()) == 1 and len(found) <= 4_000
        assert r"a\u2028b\x85\x1b[2J\u202e" in found or "xxx" not in found


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "gigantic"])
def test_what_is_no_text_file_is_refused_before_it_is_read(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "mine.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, 50 << 30)  # a hole: takes no space
    with pytest.raises(
        RecipeError, match=r"mine\.yaml.*found (no regular file|53,687,091,200 bytes, expected)"
    ):
        catalog.recipe_text(file)


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert catalog.recipe_text(tmp_path / "a.yaml") == "a: 1\n"


@pytest.mark.parametrize(
    ("found", "choices", "near"),
    [
        ("TAU", ["tau", "beta"], "tau"),
        ("paco", ["cifar_resnet20.paco_digits", "resnet50.paco_in1k", "moco"], "resnet50.paco_in1k"),
        (
            "a.paco_digits",
            ["a.ce_digits", "a.paco_digits_lt50_e100", "a.paco_digits_lt50"],
            "a.paco_digits_lt50",
        ),
        ("cat", ["concatenate"], ""),
        ("on", [True, 1, "one"], "one"),
    ],
)
def test_the_nearest_name_is_near(found: str, choices: list[Any], near: str) -> None:
    """A key of a YAML file may be no text: `on:` is true."""
    assert did_you_mean(found, choices) == (f' Did you mean "{near}"?' if near else "")
