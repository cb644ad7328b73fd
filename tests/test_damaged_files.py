"""Damaged files of every kind a user can hand us: each is read, or refused in one line that names it.

A case is a valid file, changed in a few places by a seeded generator, and a call that reads it. A few cases
of each kind run always, hundreds with `-m slow`. No case may run code that a file brings along.
"""

import copy
import io
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml

import zoo
from tests import convert_helpers
from tests.release_helpers import randomised
from zoo.catalog import list_recipes, recipe_path
from zoo.errors import ZooError
from zoo.recipe import Recipe

CANARY = Path("zoo-canary")  # a folder that hostile files make where the process works
RELEASE = "cifar_resnet20.paco_digits_lt50"
NUMBERS = (None, True, 0, -1, 2**31, 10**40, 0.5, -1e308, float("nan"), float("inf"))
WORDS = ("", " ", "null", "1e5", "../../etc", "\0", "\x1b[2J", "x\ny", "\u202egnp", "ß" * 300, "a" * 10_000)
VALUES: tuple[Any, ...] = (*NUMBERS, *WORDS, [], {}, [[]], [None], {"a": {}}, [0] * 300)
HOSTILE = (f"x: !!python/object/apply:os.mkdir [{CANARY}]\n", "a: &a [x, x]\nb: &b [*a, *a]\n", "[" * 5000)
UNCLEAR = re.compile(  # more than a printable line, and Python's own words
    r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]| object at 0x|<class |Traceback|Unable to allocate|can't allocate"
)


class Payload:
    """An object whose pickle makes a folder when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(CANARY),)


def changed_bytes(random: Random, content: bytes) -> bytes:
    """Flip, cut, remove, repeat or insert bytes, near the beginning more often than elsewhere."""
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(min(len(content), random.choice((16, 512, 1 << 30))) or 1)
        begin, end = content[:at], content[at:]
        flipped = bytes([end[0] ^ 1 << random.randrange(8)]) + end[1:] if end else b""
        shorter = end[random.choice((1, 4, 64)) :]
        ends = (flipped, b"", shorter, content[at - 100 :], random.randbytes(8) + end)
        content = begin + random.choice(ends)
    return content


def places(data: Any) -> Any:
    """Yield every (container, key) of nested lists and dicts."""
    for key in list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield data, key
        yield from places(data[key])


def changed_values(random: Random, data: Any) -> Any:
    """Replace, remove, rename, repeat or scale in one to three places of nested lists and dicts."""
    data = copy.deepcopy(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not (found := list(places(data))):
            return random.choice(VALUES)
        parent, key = random.choice(found)
        value, way = parent.pop(key), random.randrange(5)
        put = parent.__setitem__ if isinstance(parent, dict) else parent.insert
        if way == 1 and isinstance(parent, dict):
            put(f"{key}s", value)
        elif way == 2:
            put(key, [value, value])
        elif way == 3 and type(value) in (int, float):
            put(key, random.choice((-value, value * 10**9, str(value), float("nan"))))
        elif way:
            put(key, random.choice(VALUES))
    return data


def changed_json(random: Random, content: bytes) -> bytes:
    return json.dumps(changed_values(random, json.loads(content))).encode()


def changed_yaml(random: Random, content: bytes) -> bytes:
    if random.random() < 0.2:
        return random.choice(HOSTILE).encode() + content
    text: str = yaml.dump(changed_values(random, yaml.safe_load(content)), allow_unicode=True)
    return text.encode("utf-8", "replace")


def changed_torch_file(random: Random, content: bytes) -> bytes:
    """Hide a pickle that runs code among the tensors, or change values."""
    data = torch.load(io.BytesIO(content), weights_only=True)
    data = random.choice((lambda: {**data, "extra": Payload()}, lambda: changed_values(random, data)))()
    stream = io.BytesIO()
    torch.save(data, stream)
    return random.choice((stream.getvalue(), stream.getvalue(), pickle.dumps(Payload())))


def read_release(file: Path) -> None:
    release = zoo.open(file.parent)
    _ = release.recipe, release.metrics, release.card, release.centers, release.transform()
    release.load(head="centers")(torch.zeros(1, 3, 32, 32))


def a_recipe(random: Random, folder: Path) -> Path:
    return shutil.copy(recipe_path(random.choice(list_recipes())), folder / "mine.yaml")


def a_checkpoint(random: Random, folder: Path) -> Path:
    return convert_helpers.save(folder / "given.pth", randomised(convert_helpers.PaCo()))


def convert(file: Path) -> None:
    zoo.convert(file, "paco", file.parent / "out", arch="cifar_resnet20")


def release_file(name: str, change: Any, cases: int) -> tuple[Any, ...]:
    def make(random: Random, folder: Path) -> Path:
        return Path(shutil.copytree(zoo.open(RELEASE).path, folder / "r")) / name

    return make, change, read_release, ("/r", name), cases


KINDS: dict[str, tuple[Callable[[Random, Path], Path], Any, Any, tuple[str, ...], int]] = {
    # who makes, changes and reads it, words of which a refusal has one, cases that always run
    "recipe": (a_recipe, changed_yaml, Recipe.load, ("mine.yaml",), 20),
    "config.json": release_file("config.json", changed_json, 12),
    "metrics.json": release_file("metrics.json", changed_json, 8),
    "recipe.yaml": release_file("recipe.yaml", changed_yaml, 8),
    "model.safetensors": release_file("model.safetensors", changed_bytes, 6),
    "checkpoint": (a_checkpoint, changed_torch_file, convert, ("given.pth", "out", "family"), 8),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hundreds", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_refused_in_one_line(kind, hundreds, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, change, read, names, few = KINDS[kind]
    wrong, refused = [], 0
    for number in range(1000, 1300) if hundreds else range(few):
        random, folder = Random(f"{kind}/{number}"), tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        file = make(random, folder)
        file.write_bytes(random.choice((change, change, changed_bytes))(random, file.read_bytes()))
        try:
            read(file)
        except ZooError as error:
            refused += 1
            clear = len(str(error)) <= 6000 and not UNCLEAR.search(str(error))
            if not clear or not any(name in str(error) for name in names):
                wrong.append((number, str(error)[:300]))
        except Exception as error:
            wrong.append((number, f"{type(error).__name__}: {error}"[:300]))
        assert not CANARY.exists(), f"{kind} {number}: code of the file has run"
    assert not wrong
    assert refused, "no case was damaged enough to be refused"
