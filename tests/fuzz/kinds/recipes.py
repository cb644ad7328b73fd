"""Recipes: their text, what `--set` changes in them, and what is built of one that is accepted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import mutate
from tests.fuzz.case import Case, WrongResultError, command
from zoo import catalog
from zoo.config import load_yaml
from zoo.data import DataConfig, open_dataset
from zoo.data.config import Digits
from zoo.recipe import Recipe
from zoo.training import build_objective

_FILE = "mine.yaml"


@cache
def _shipped() -> tuple[str, ...]:
    return tuple(catalog.recipe_path(name).read_text(encoding="utf-8") for name in catalog.list_recipes())


@cache
def _small() -> tuple[str, ...]:
    """One of each objective, with a tiny encoder and embedded data."""
    return tuple(text for text in _shipped() if "kind: digits" in text and "arch: cifar_resnet20" in text)


def recipes(random: Random, folder: Path) -> Case:
    """A recipe's file."""
    given, file, note = random.choice(_shipped()), folder / _FILE, "text"
    way = random.randrange(4)
    if way == 0:
        content = mutate.octets(random, given.encode(), [text.encode() for text in _small()])
    elif way == 1:
        content = mutate.text(random, given)
    else:
        data, note = mutate.tree(random, load_yaml(given, "seed"))
        content = mutate.to_yaml(random, data)
    file.write_bytes(content)
    if random.random() < 0.02:
        note = _replaced(random, file)

    return Case(
        {"load": lambda: _twice(Recipe.load(file)), "show": lambda: command("show", str(file))},
        (_FILE,),
        note,
    )


def _replaced(random: Random, file: Path) -> str:
    """Put something in the file's place that is no recipe, or endless."""
    file.unlink()
    if random.random() < 0.5:
        with file.open("wb") as stream:
            stream.truncate(50 << 30)  # a hole: takes no space
        return "50 GiB of zeros"
    file.mkdir()
    return "a folder"


def _twice(recipe: Recipe) -> Recipe:
    """An accepted recipe is written as one that reads the same."""
    again = Recipe.from_yaml(recipe.to_yaml(), "again")
    if again != recipe or again.sha256 != recipe.sha256:
        raise WrongResultError("a recipe that changes when it is written and read")
    return recipe


def overrides(random: Random, folder: Path) -> Case:
    """`--set A.B=C`, several at once."""
    name = random.choice([name for name in catalog.list_recipes() if "digits" in name])
    plain = load_yaml(catalog.recipe_path(name).read_text(encoding="utf-8"), name)
    paths = list(_keys(plain, ""))
    given = []
    for _ in range(random.choice((1, 1, 2, 4))):
        key = random.choice(paths)
        if random.random() < 0.2:
            key = mutate.text(random, key).decode("utf-8", "replace")
        value = mutate.to_yaml(random, mutate.value(random)).decode("utf-8", "replace").strip()
        given.append(f"{key}={value}" if random.random() < 0.95 else f"{key}{value}")
    names = ("--set", f"{name}.yaml", name)
    return Case({"load": lambda: _twice(Recipe.load(name, given))}, names, repr(given)[:300])


def _keys(plain: Any, path: str) -> list[str]:
    if path and not isinstance(plain, dict | list):
        return [path]
    pairs = plain.items() if isinstance(plain, dict) else enumerate(plain)
    found = [path] if path else []
    for key, value in pairs:
        found += _keys(value, f"{path}.{key}" if path else str(key))
    return found


@cache
def _digits() -> Any:
    return open_dataset(DataConfig(source=Digits()), "train", None)


def built(random: Random, folder: Path) -> Case:
    """The objective of a recipe that is accepted: encoder, heads, queue, optimizer's numbers."""
    plain = Recipe.from_yaml(random.choice(_small()), "seed").model_dump(mode="json")  # with every section
    section = random.choice(("objective", "objective", "backbone", "init", "data"))
    plain[section], note = mutate.tree(random, plain[section])
    file = folder / _FILE
    file.write_bytes(mutate.to_yaml(random, plain))

    def build() -> None:
        recipe = Recipe.load(file)
        data = open_dataset(recipe.data, "train", None)
        build_objective(recipe, data)

    return Case({"build": build}, (), f"{section}.{note}")
