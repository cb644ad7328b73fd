"""Damaged files of every kind a user can hand us: each is read, or refused in one line that names it.

A case is a valid file, changed in a few places by a seeded generator, and a call that reads it. A few cases
of each kind run always, hundreds with `-m slow`. No case may run code that a file brings along.
"""

from __future__ import annotations

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
from zoo import catalog
from zoo.errors import ZooError
from zoo.recipe import Recipe

CANARY = Path("zoo-canary")  # a folder that hostile files make where the process works
RELEASE = "cifar_resnet20.paco_digits_lt50"
NUMBERS = (None, True, 0, -1, 2**31, 10**40, 0.5, -1e308, float("nan"), float("inf"))
WORDS = ("", " ", "null", "1e5", "../../etc", "\0", "\x1b[2J", "x\ny", "\u202egnp", "ß" * 300, "a" * 10_000)
UNCLEAR = re.compile(  # more than a printable line, and Python's own words
    r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]| object at 0x|<class |Traceback|Unable to allocate|can't allocate"
)
VALUES: tuple[Any, ...] = (*NUMBERS, *WORDS, [], {}, [[]], [None], {"a": {}}, [0] * 300)


class Payload:
    """An object whose pickle makes a folder when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(CANARY),)


# --- changes


def changed_bytes(random: Random, content: bytes) -> bytes:
    """Flip, cut, remove, repeat or insert bytes, near the beginning more often than elsewhere."""
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(min(len(content), random.choice((16, 512, 1 << 30))) or 1)
        begin, end = content[:at], content[at:]
        flipped = bytes([end[0] ^ 1 << random.randrange(8)]) + end[1:] if end else b""
        ends = (
            flipped,
            b"",
            end[random.choice((1, 4, 64)) :],
            content[at - 100 :],
            random.randbytes(8) + end,
        )
        content = begin + random.choice(ends)
    return content


def changed_values(random: Random, data: Any) -> Any:
    """Replace, remove, rename, repeat or add in one to three places of nested lists and dicts."""
    data = copy.deepcopy(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        parent, key = random.choice(list(places(data)) or [(None, None)])
        way = random.randrange(5)
        if parent is None:
            return random.choice(VALUES)
        if way == 0:
            del parent[key]
        elif way == 1 and isinstance(parent, dict):
            parent[f"{key}s"] = parent.pop(key)
        elif way == 2:
            parent[key] = [parent[key], parent[key]]
        elif way == 3 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = random.choice((-parent[key], parent[key] * 10**9, str(parent[key]), float("nan")))
        else:
            parent[key] = random.choice(VALUES)
    return data


def places(data: Any) -> Any:
    """Yield every (container, key) of nested lists and dicts."""
    for key in list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield data, key
        yield from places(data[key])


def changed_json(random: Random, content: bytes) -> bytes:
    return json.dumps(changed_values(random, json.loads(content))).encode()


HOSTILE = (f"x: !!python/object/apply:os.mkdir [{CANARY}]\n", "a: &a [x, x]\nb: &b [*a, *a]\n", "[" * 5000)


def changed_yaml(random: Random, content: bytes) -> bytes:
    if random.random() < 0.2:
        return random.choice(HOSTILE).encode() + content
    text: str = yaml.dump(changed_values(random, yaml.safe_load(content)), allow_unicode=True)
    return text.encode("utf-8", "replace")


def changed_torch_file(random: Random, content: bytes) -> bytes:
    """Hide a pickle that runs code among the tensors, or change values or bytes."""
    way = random.randrange(3)
    if way == 0:
        return changed_bytes(random, content)
    data = torch.load(io.BytesIO(content), weights_only=True)
    data = {**data, "extra": Payload()} if way == 1 else changed_values(random, data)
    stream = io.BytesIO()
    torch.save(data, stream)
    return random.choice((stream.getvalue(), stream.getvalue(), pickle.dumps(Payload())))


# --- kinds: how a valid file is made below a folder, how it is changed, who reads it


Maker = Callable[[Random, Path], Callable[[], object]]


def release_file(name: str, change: Callable[[Random, bytes], bytes]) -> Maker:
    def make(random: Random, folder: Path) -> Callable[[], object]:
        shutil.copytree(zoo.open(RELEASE).path, folder / "r")
        file = folder / "r" / name
        file.write_bytes(random.choice((change, change, changed_bytes))(random, file.read_bytes()))

        def read() -> None:
            release = zoo.open(folder / "r")
            _ = release.recipe, release.metrics, release.card, release.centers, release.transform()
            release.load(head="centers")(torch.zeros(1, 3, 32, 32))

        return read

    return make


def recipe_file(random: Random, folder: Path) -> Callable[[], object]:
    given = catalog.recipe_path(random.choice(catalog.list_recipes())).read_bytes()
    file = folder / "mine.yaml"
    file.write_bytes(random.choice((changed_yaml, changed_bytes))(random, given))
    return lambda: Recipe.load(file)


def checkpoint(random: Random, folder: Path) -> Callable[[], object]:
    model = convert_helpers.randomised(convert_helpers.PaCo())
    stream = io.BytesIO()
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 12, "arch": "resnet", "state_dict": state}, stream)
    file = folder / "given.pth"
    file.write_bytes(changed_torch_file(random, stream.getvalue()))
    return lambda: zoo.convert(file, "paco", folder / "out", arch="cifar_resnet20")


KINDS: dict[str, tuple[Maker, tuple[str, ...], int]] = {
    # who makes and reads it, words of which a refusal has one, cases that always run
    "recipe": (recipe_file, ("mine.yaml",), 20),
    "config.json": (release_file("config.json", changed_json), ("/r", "config.json"), 12),
    "metrics.json": (release_file("metrics.json", changed_json), ("/r", "metrics.json"), 8),
    "recipe.yaml": (release_file("recipe.yaml", changed_yaml), ("/r", "recipe.yaml"), 8),
    "model.safetensors": (release_file("model.safetensors", changed_bytes), ("/r", "model.safetensors"), 6),
    "checkpoint": (checkpoint, ("given.pth", "out", "family"), 8),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hundreds", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_refused_in_one_line(kind: str, hundreds: bool, tmp_path: Path) -> None:
    make, names, few = KINDS[kind]
    wrong, refused = [], 0
    for number in range(1000, 1300) if hundreds else range(few):
        folder = tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        read = make(Random(f"{kind}/{number}"), folder)
        try:
            read()
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
