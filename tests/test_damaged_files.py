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
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import zoo
from tests import convert_helpers
from zoo import catalog
from zoo.data import open_dataset, parse_data_spec
from zoo.errors import ZooError
from zoo.recipe import Recipe

CANARY = Path("zoo-canary")  # a folder that hostile files make where the process works
RELEASE = "cifar_resnet20.paco_digits_lt50"
RELEASE_FILES = (
    *("config.json", "model.safetensors", "centers.safetensors", "recipe.yaml", "metrics.json", "README.md"),
)
NUMBERS = (None, True, 0, -1, 2**31, 10**40, 0.5, -1e308, float("nan"), float("inf"))
WORDS = ("", " ", "null", "1e5", "../../etc", "\0", "\x1b[2J", "x\ny", "\u202egnp", "ß" * 300, "a" * 10_000)
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
        way = random.randrange(5)
        if way == 0 and content:
            content = content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
        elif way == 1:
            content = content[:at]
        elif way == 2:
            content = content[:at] + content[at + random.choice((1, 4, 64)) :]
        elif way == 3:
            content = content[: at + 100] + content[at:]
        else:
            content = content[:at] + random.randbytes(8) + content[at:]
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


def changed_yaml(random: Random, content: bytes) -> bytes:
    if random.random() < 0.2:
        tag = f"x: !!python/object/apply:os.mkdir [{CANARY}]\n"
        return (
            random.choice(
                (tag, "a: &a [x, x]\nb: &b [*a, *a]\n", "[" * 5000, "<<: 3\n", "%YAML 9.9\n")
            ).encode()
            + content
        )
    return str(yaml.dump(changed_values(random, yaml.safe_load(content)), allow_unicode=True)).encode(
        "utf-8", "replace"
    )


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


def written(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


@cache
def shipped(name: str) -> bytes:
    path = catalog.release_path(RELEASE)
    assert path is not None
    return (path / name).read_bytes()


def release_file(
    name: str, change: Callable[[Random, bytes], bytes]
) -> Callable[[Random, Path], Callable[[], object]]:
    def make(random: Random, folder: Path) -> Callable[[], object]:
        for each in RELEASE_FILES:
            written(folder / "r" / each, shipped(each))
        written(folder / "r" / name, random.choice((change, change, changed_bytes))(random, shipped(name)))

        def read() -> None:
            release = zoo.open(folder / "r")
            _ = release.recipe, release.metrics, release.card, release.centers, release.transform()
            release.load(head="centers")(torch.zeros(1, 3, 32, 32))

        return read

    return make


def recipe_file(random: Random, folder: Path) -> Callable[[], object]:
    given = catalog.recipe_path(random.choice(catalog.list_recipes())).read_bytes()
    file = written(folder / "mine.yaml", random.choice((changed_yaml, changed_bytes))(random, given))
    return lambda: Recipe.load(file)


def checkpoint(random: Random, folder: Path) -> Callable[[], object]:
    model = convert_helpers.randomised(convert_helpers.PaCo())
    stream = io.BytesIO()
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 12, "arch": "resnet", "state_dict": state}, stream)
    file = written(folder / "given.pth", changed_torch_file(random, stream.getvalue()))
    return lambda: zoo.convert(file, "paco", folder / "out", arch="cifar_resnet20")


def image(random: Random, folder: Path) -> Callable[[], object]:
    for split in ("train", "val"):
        for label in "ab":
            written(folder / split / label / "0.png", picture("PNG"))
    form = random.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"))
    written(folder / "train/a/0.png", changed_bytes(random, picture(form)))
    return lambda: images_of(f"folder:{folder}")


@cache
def picture(form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.arange(768, dtype=np.uint8).reshape(16, 16, 3)).save(stream, form)
    return stream.getvalue()


def images_of(spec: str) -> None:
    config, root = parse_data_spec(spec)
    data = open_dataset(config, "train", root)
    for index in range(len(data)):
        data.image(index)


KINDS: dict[str, tuple[Callable[[Random, Path], Callable[[], object]], tuple[str, ...], int]] = {
    # who makes and reads it, words of which a refusal has one, cases that always run
    "recipe": (recipe_file, ("mine.yaml",), 20),
    "config.json": (release_file("config.json", changed_json), ("/r", "config.json"), 12),
    "metrics.json": (release_file("metrics.json", changed_json), ("/r", "metrics.json"), 8),
    "recipe.yaml": (release_file("recipe.yaml", changed_yaml), ("/r", "recipe.yaml"), 8),
    "model.safetensors": (release_file("model.safetensors", changed_bytes), ("/r", "model.safetensors"), 6),
    "checkpoint": (checkpoint, ("given.pth", "out", "family"), 8),
    "image": (image, ("0.png",), 15),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    judge(kind, range(KINDS[kind][2]), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_damaged_files_are_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    judge(kind, range(1000, 1300), tmp_path)


def judge(kind: str, numbers: range, tmp_path: Path) -> None:
    make, names, _ = KINDS[kind]
    wrong, refused = [], 0
    for number in numbers:
        folder = tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        read = make(Random(f"{kind}/{number}"), folder)
        try:
            read()
        except ZooError as error:
            refused += 1
            wrong += [(number, problem) for problem in problems(str(error), names)]
        except Exception as error:
            wrong.append((number, f"{type(error).__name__}: {error}"[:300]))
        assert not CANARY.exists(), f"{kind} {number}: code of the file has run"
    assert not wrong
    assert refused, "no case was damaged enough to be refused"


def problems(message: str, names: tuple[str, ...]) -> list[str]:
    """Return what is wrong with the message of a refusal."""
    shown = message[:300]
    found = [] if any(name in message for name in names) else [f"names none of {names}: {shown}"]
    if (
        len(message.splitlines()) != 1
        or len(message) > 6000
        or re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", message)
    ):
        found.append(f"not one printable line: {shown!r}")
    if re.search(r" object at 0x|<class |Traceback|Unable to allocate|can't allocate", message):
        found.append(f"Python's own words: {shown}")
    return found
