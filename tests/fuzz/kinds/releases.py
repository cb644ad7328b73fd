"""Release folders: each of their files changed, and everything that reads them."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

import zoo
from tests.fuzz import mutate
from tests.fuzz.case import Case, WrongResultError, command
from tests.report_helpers import subject
from zoo import catalog
from zoo.config import load_yaml
from zoo.errors import ZooError
from zoo.release import history
from zoo.release.card import check_card
from zoo.release.check import check_release
from zoo.report.figures import draw_one

_FILES = (
    "config.json",
    "model.safetensors",
    "centers.safetensors",
    "recipe.yaml",
    "metrics.json",
    "README.md",
)
_HASHED = {
    "model.safetensors": "weights_sha256",
    "centers.safetensors": "centers_sha256",
    "recipe.yaml": "recipe_sha256",
}
_PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
_NAMES = (
    "/r/",
    "/r:",
    "paco_digits",
    "metrics.json",
    "recipe.yaml",
    "config.json",
)  # the folder, or the release's name


@cache
def _seed() -> dict[str, bytes]:
    shipped = catalog.release_path("cifar_resnet20.paco_digits_lt50")
    assert shipped is not None
    return {name: (shipped / name).read_bytes() for name in _FILES}


def _copied(folder: Path) -> Path:
    target = folder / "r"
    target.mkdir()
    for name, content in _seed().items():
        (target / name).write_bytes(content)
    (target / "curves.png").write_bytes(_PNG)
    for split in ("train", "val"):
        for number in (0, 1):
            (folder / f"data/{split}/{number}").mkdir(parents=True)
            Image.new("RGB", (8, 8), (number * 200, 9, 9)).save(folder / f"data/{split}/{number}/1.png")
    return target


def _calls(folder: Path) -> dict[str, Callable[[], object]]:
    target, data = folder / "r", folder / "data"

    def attributes() -> None:
        release = zoo.open(target)
        for read in ("recipe", "metrics", "history", "centers", "class_names", "card", "preprocess", "name"):
            getattr(release, read)

    def check() -> None:
        release = zoo.open(target)
        check_release(release)
        check_card(release.path, release.config)

    def evaluate() -> None:
        entry = zoo.evaluate(target, "knn", f"folder:{data}", device="cpu", k=1, save=False)
        if entry["metrics"]["accuracy"] is None:
            raise WrongResultError(f"no accuracy: {entry}")

    def transform() -> None:
        pixels = zoo.open(target).transform()(Image.new("L", (9, 12)))
        if pixels.ndim != 3 or pixels.shape[0] != 3:
            raise WrongResultError(f"pixels of shape {list(pixels.shape)}")

    def add() -> None:
        entry = {"protocol": "knn", "data": "x", "split": "test", "metrics": {"accuracy": 1.0}}
        zoo.open(target).add_evaluation(entry)

    return {
        "attributes": attributes,
        "load": lambda: zoo.load(target),
        "centers": lambda: zoo.load(target, head="centers"),
        "show": lambda: command("show", str(target)),
        "check": check,
        "evaluate": evaluate,
        "transform": transform,
        "card": lambda: zoo.open(target).render_card(),
        "add": add,
    }


def _rehash(target: Path, random: Random) -> None:
    """Mostly record the changed files' hashes, as who changes a file on purpose does."""
    file = target / "config.json"
    if random.random() < 0.3:
        return
    try:
        config = json.loads(file.read_bytes())
        for name, key in _HASHED.items():
            if (target / name).is_file() and (target / name).stat().st_size < 1 << 28:
                config["zoo"][key] = hashlib.sha256((target / name).read_bytes()).hexdigest()
        file.write_text(json.dumps(config))
    except (ValueError, LookupError, TypeError, OSError, RecursionError):
        return


def releases(random: Random, folder: Path) -> Case:
    """Configuration, recipe and metrics; files that are none."""
    target = _copied(folder)
    name = random.choice(("config.json", "config.json", "recipe.yaml", "metrics.json"))
    way = random.randrange(10)
    if way == 0:
        name = random.choice(_FILES)
        note = _replaced(random, target / name)
    elif way < 3:
        (target / name).write_bytes(mutate.octets(random, _seed()[name], tuple(_seed().values())[3:]))
        note = "bytes"
    elif name == "recipe.yaml":
        data, note = mutate.tree(random, load_yaml(_seed()[name].decode(), "seed"))
        (target / name).write_bytes(mutate.to_yaml(random, data))
    else:
        data, note = _narrowed(random, name)
        (target / name).write_bytes(mutate.to_json(random, data))
    if name != "config.json":
        _rehash(target, random)
    return Case(_calls(folder), _NAMES, f"{name}: {note}")


def _narrowed(random: Random, name: str) -> tuple[Any, str]:
    """Change one section: the longest lists would else take most of the changes."""
    data = json.loads(_seed()[name])
    if name == "config.json" and random.random() < 0.7:
        section = random.choice(("zoo", "pretrained_cfg", "model_args"))
        if section == "model_args":
            data["architecture"] = random.choice(
                ("cifar_resnet20", "resnet18", "vit_tiny_patch16_224", "convnext_atto")
            )
            data[section] = {
                random.choice(_ARGUMENTS): mutate.value(random) for _ in range(random.choice((1, 2)))
            }
            return data, f"{section} of {data['architecture']}: {data[section]!r}"[:300]
        if section == "zoo" and random.random() < 0.3:
            data["zoo"]["dataset"], note = mutate.tree(random, data["zoo"]["dataset"])
            return data, f"zoo.dataset.{note}"
        data[section], note = mutate.tree(random, data[section])
        return data, f"{section}.{note}"
    if name == "metrics.json" and random.random() < 0.7:
        section = random.choice(("training", "evaluations"))
        data[section], note = mutate.tree(random, data[section])
        return data, f"{section}.{note}"
    return mutate.tree(random, data)


_ARGUMENTS = (
    *("img_size", "patch_size", "depth", "embed_dim", "num_heads", "mlp_ratio", "class_token", "global_pool"),
    *("layers", "block", "stem_type", "stem_width", "output_stride", "drop_rate", "act_layer", "norm_layer"),
    *(
        "in_chans",
        "num_classes",
        "depths",
        "dims",
        "kernel_sizes",
        "pretrained",
        "checkpoint_path",
        "scriptable",
    ),
)


def _replaced(random: Random, file: Path) -> str:
    kind = random.choice(("folder", "pipe", "zeros", "loop", "absent", "device", "link", "empty", "mark"))
    if kind == "mark":
        file.with_name(".writing").mkdir()
        return kind
    content = file.read_bytes()
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "zeros":
        with file.open("wb") as stream:
            stream.write(content[:-1])
            stream.truncate(50 << 30)
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "link":
        other = file.parent.parent / "elsewhere"
        other.write_bytes(content)
        file.symlink_to(other)
    elif kind == "empty":
        file.touch()
    return kind


def histories(random: Random, folder: Path) -> Case:
    """The record of the training: columns of numbers, and rows of classes."""
    target = _copied(folder)
    file = target / "history.json"
    file.write_bytes(_history())
    way = random.randrange(10)
    if way == 0:
        note = _replaced(random, file)
    elif way < 3:
        file.write_bytes(mutate.octets(random, _history(), tuple(_seed().values())[3:]))
        note = "bytes"
    else:
        data = json.loads(_history())
        section = random.choice(("columns", "classes", "rows", ""))
        if section:
            data[section], note = mutate.tree(random, data[section])
        else:
            data, note = mutate.tree(random, data)
        file.write_bytes(mutate.to_json(random, data))

    def draw() -> None:
        found = zoo.open(target).history
        if found is not None:
            rows = history.rows_of(found)
            draw_one("curves", [subject(rows=rows)], folder / "curves.png")
            if history.gather(rows, found["classes"]) is None:
                raise WrongResultError("a history that was read makes none")

    calls = _calls(folder)
    return Case(
        {"draw": draw, **{key: calls[key] for key in ("attributes", "check", "card")}},
        (*_NAMES, "history.json"),
        f"history: {note}",
    )


@cache
def _history() -> bytes:
    rows = [
        {"step": i, "epoch": i / 4, "lr": 0.1, "loss": 1 / i, "p_sup_many": None if i % 2 else 0.5}
        for i in range(1, 9)
    ]
    classes = {
        "step": 8,
        "epoch": 2.0,
        "looks": 2,
        "images": [3, 0],
        "feature_gradient": [0.5, None],
        "center_gradient": None,
    }
    made = history.gather(rows, [{**classes, "step": 4}, classes])
    assert made is not None
    return history.to_json(made).encode()


def weights(random: Random, folder: Path) -> Case:
    """Headers and bodies of the two safetensors files."""
    target = _copied(folder)
    name = random.choice(("model.safetensors", "centers.safetensors"))
    content = safetensors(random, _seed()[name])
    (target / name).write_bytes(content)
    _rehash(target, random)
    calls = _calls(folder)
    return Case({key: calls[key] for key in ("attributes", "load", "centers", "check")}, _NAMES, name)


def safetensors(random: Random, given: bytes) -> bytes:
    """Change a safetensors file: its header as JSON or as bytes, or what follows."""
    length = int.from_bytes(given[:8], "little")
    header, body = json.loads(given[8 : 8 + length]), given[8 + length :]
    way = random.randrange(5)
    if way == 0:
        return mutate.octets(random, given)
    if way == 1:
        return given[:8] + mutate.octets(random, given[8 : 8 + length]) + body
    if way == 2:
        text = mutate.to_json(random, mutate.tree(random, header)[0])
    elif way == 3:
        _, entry = random.choice(list(header.items()))
        entry["shape"] = random.choice(
            ([2**40, 2**40], [-1], [2**63], [1] * 70, [0], [], [1e3], [True], [10**30])
        )
        entry["data_offsets"] = random.choice(
            (entry.get("data_offsets"), [0, 2**50], [5, 1], [-4, 4], [0], [0.0, 1])
        )
        text = mutate.to_json(random, header)
    else:
        entry = random.choice([entry for entry in header.values() if "dtype" in entry])
        entry["dtype"] = random.choice(
            ("F64", "F16", "BF16", "F8_E4M3", "F4", "C64", "I64", "BOOL", "", "f32", "U16")
        )
        text = mutate.to_json(random, header)
    if random.random() < 0.1:
        text = random.choice(
            (b"[" * 200_000, b'{"a":' * 100_000, b"{}", b"null", b"9" * 5000, b'{"a":{"shape":[' * 9)
        )
    return (
        struct.pack("<Q", len(text) if random.random() < 0.9 else random.choice(mutate.BOUNDS) % 2**64)
        + text
        + body
    )


def cards(random: Random, folder: Path) -> Case:
    """The card: what is written in it, and what it is checked against."""
    target, note = _copied(folder), "bytes"
    card = _seed()["README.md"].decode()
    way = random.randrange(4)
    if way == 0:
        content = mutate.octets(random, card.encode())
    elif way == 1:
        end = card.index("\n---\n", 4)
        data, note = mutate.tree(random, load_yaml(card[4:end], "card"))
        content = b"---\n" + mutate.to_yaml(random, data) + card[end + 1 :].encode()
    else:
        content, note = mutate.text(random, card), "lines"
    (target / "README.md").write_bytes(content)
    calls = _calls(folder)

    def check_then_render() -> None:
        release = zoo.open(target)
        try:
            check_card(release.path, release.config)
        except ZooError:
            release.render_card()
            check_card(release.path, release.config)  # as the refusal says
            raise

    chosen = {key: calls[key] for key in ("attributes", "show", "card")}
    return Case({"check": check_then_render, **chosen}, (*_NAMES, "README.md"), note)
