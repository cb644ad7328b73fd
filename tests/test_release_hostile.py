"""Hostile and damaged releases: each is one clear error, soon, without harm; and a sound one passes."""

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import zoo
from zoo.errors import ReleaseError
from zoo.release import Release, format
from zoo.release.write import check_release

WEIGHTS, CENTERS = "model.safetensors", "centers.safetensors"

Damage = Callable[[Path], object]


@pytest.fixture
def copied(made: Release, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.path, tmp_path / "copy"))


def read_all(folder: Path) -> None:
    release = zoo.open(folder)
    _ = release.metrics, release.recipe, release.card, release.centers, release.history, release.load()


def edit(path: str, value: Any, file: str = "config.json") -> Damage:
    """Return what changes a key of a JSON file."""

    def change(folder: Path) -> None:
        data = json.loads((folder / file).read_text())
        section, keys = data, [int(key) if key.isdigit() else key for key in path.split(".")]
        for key in keys[:-1]:
            section = section[key]
        section[keys[-1]] = value
        (folder / file).write_text(json.dumps(data))

    return change


def write(name: str, content: bytes | str) -> Damage:
    """Return what writes a file, and records its hash, as who changes it on purpose does."""

    def change(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        if name in format.HASHED:
            edit(f"zoo.{format.HASHED[name]}", format.sha256(folder / name))(folder)

    return change


LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\n"
LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12\n"
DAMAGED: dict[str, tuple[Damage, str]] = {
    "code": (edit("auto_map", {"AutoModel": "evil.Model"}), 'unknown key "auto_map"'),
    "another file": (edit("pretrained_cfg.file", "/etc/passwd"), r'unknown key "pretrained_cfg\.file"'),
    "other weights": (edit("model_args.pretrained", True), "model_args: pretrained cannot be part"),
    "an address": (edit("architecture", "hf-hub:evil/model"), '"architecture": found .*hf-hub:evil/model'),
    "an architecture": (edit("architecture", "cifar_resnet_20"), 'Did you mean "cifar_resnet20"'),
    "a newer format": (edit("zoo.format", 2), r"zoo\.format.*found 2"),
    "no hash": (edit("zoo.centers_sha256", None), r"centers\.safetensors: sha256"),
    "narrow features": (edit("zoo.feature_dim", 63), r"centers\.safetensors: found .*\[5, 64\].*\[5, 63\]"),
    "endless layers": (edit("model_args", {"depth": 10**9}), "expected a number of at most 16384"),
    "infinity": (edit("training", {"seconds": 1e999}, "metrics.json"), r'"training.seconds": found inf'),
    # words that would be obeyed or forge a line where they are printed
    "an escape": (edit("zoo.description", "\x1b]0;owned\x07"), '"zoo.description": found control characters'),
    "a line in a name": (edit("label_names.0", "cat\nAccuracy: 100 %"), "found control characters, .cat"),
    "deep JSON": (write("config.json", b"[" * 100_000), "not valid JSON"),
    "too large": (write("metrics.json", b"{" + b" " * (9 << 20)), "expected at most 8,388,608"),
    "git's pointer": (write(WEIGHTS, LFS), "expected a whole safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "a hole of 50 GB": (lambda f: os.truncate(f / WEIGHTS, 50 << 30), "expected a whole safetensors"),
    "other tensors": (write(WEIGHTS, save({"extra": torch.ones(3)})), r"model\.safetensors: .*extra"),
    "billion laughs": (write("recipe.yaml", LAUGHS), r"recipe\.yaml: .*found an anchor"),
    "YAML code": (write("recipe.yaml", "a: !!python/object/apply:os.system [x]"), "not valid YAML"),
    "no training": (edit("training", [], "metrics.json"), r'"training": found \[\]'),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_release_is_one_clear_error_and_does_no_harm(copied: Path, case: str) -> None:
    damage, message = DAMAGED[case]
    damage(copied)
    with pytest.raises(ReleaseError, match=rf"\A.*{message}.*\Z"):
        read_all(copied)


class Exploit:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("name", [WEIGHTS, CENTERS, "config.json", "recipe.yaml"])
@pytest.mark.parametrize("form", ["pickle", "torch", "old torch"])
def test_a_pickle_under_any_name_is_not_unpickled(copied: Path, tmp_path: Path, name: str, form: str) -> None:
    mark = tmp_path / "owned"
    stream = io.BytesIO()
    if form == "pickle":
        pickle.dump(Exploit(mark), stream)
    else:
        torch.save({"a": Exploit(mark)}, stream, _use_new_zipfile_serialization=form == "torch")
    write(name, stream.getvalue())(copied)
    with pytest.raises(ReleaseError, match=rf"\A.*{name}.*\Z"):
        read_all(copied)
    assert not mark.exists()


@pytest.mark.parametrize("name", [WEIGHTS, CENTERS, "recipe.yaml"])
def test_a_changed_byte_is_found_though_size_and_times_look_the_same(copied: Path, name: str) -> None:
    file = copied / name
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 42  # of the recipe a line's end becomes a blank
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ReleaseError, match=rf"\A.*{name}: sha256.*\Z"):
        read_all(copied)
        check_release(zoo.open(copied))
