"""What a conversion refuses: each one clear line, before anything is written and without running the file."""

import argparse
import math
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from tests import convert_helpers as made
from tests.convert_helpers import changed, refusal
from tests.release_helpers import randomised
from zoo.errors import RecipeError, ReleaseError
from zoo.recipe import Recipe

PACO = "cifar_resnet20"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@pytest.fixture(scope="module")
def paco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(tmp_path_factory.mktemp("files") / "paco.pth.tar", randomised(made.PaCo()))


def with_state(**values: Any) -> Any:
    return lambda state: state.update({f"module.{key}": value for key, value in values.items()})


QUERY = "encoder_q.conv1.weight"
GIANT = torch.zeros(1).expand(1 << 20, 1 << 20)  # 4 TiB of a file of a few bytes
CHANGES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "unknown": (with_state(**{"extra.weight": torch.zeros(2)}), ("extra.weight", "--leave-out")),
    "escape": (with_state(**{ESCAPE * 10_000: torch.zeros(1)}), ("\\x1b",)),
    "missing": (lambda state: state.pop("module.encoder_q.bn1.running_var"), ("missing: bn1.running_var",)),
    "shape": (with_state(**{QUERY: torch.zeros(16, 3, 5, 5)}), ("[16, 3, 5, 5] instead of [16, 3, 3, 3]",)),
    "not finite": (with_state(**{QUERY: torch.full((16, 3, 3, 3), math.nan)}), ("not finite: conv1.weight",)),
    "giant": (with_state(**{"linear.weight": GIANT}), ("linear.weight", "more values than the file")),
    "centers": (with_state(**{"linear.weight": torch.zeros(9, 64)}), ("centers", "[9, 64]")),
    "twice": (lambda state: state.update({"linear.bias": torch.zeros(7)}), ("twice", "linear.bias")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_keys_and_tensors_that_are_not_understood(paco: Path, tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    message = refusal(changed(paco, tmp_path / "f.pth", change), "paco", tmp_path, arch=PACO)
    assert all(words in message for words in expected), message
    assert len(message) < 4000


def test_unknown_keys_are_left_out_only_when_they_are_named(paco: Path, tmp_path: Path) -> None:
    state = with_state(**{"decoder.a": torch.zeros(1), "encoder_q.layer1.extra": torch.zeros(1)})
    file = changed(paco, tmp_path / "f.pth", state)
    assert '"decodr.*"' in refusal(file, "paco", tmp_path, leave_out=["decodr.*"])
    beside = {
        "args": argparse.Namespace(lr=0.03, path=Path("data"), __setstate__="not called"),
        "opt": argparse.Namespace(nested=argparse.Namespace(a=1)),
        **{"best_acc1": np.float64(67.5), "history": np.arange(3.0), ESCAPE: 1},
    }
    torch.save(torch.load(file) | beside, file)
    release = zoo.convert(file, "paco", tmp_path / "out", arch=PACO, leave_out=["deco?er.*", "*.extra"])
    left_out = release.recipe["converted"]["left_out"]
    assert left_out["left out on request"] == "decoder.a, encoder_q.layer1.extra"
    assert "args" in left_out["not weights"] and left_out["not weights"].isprintable()


def test_paths_that_python_3_13_saved_are_read(
    paco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = type("PosixPath", (), {"__module__": "pathlib._local"})  # before and after it is in pathlib
    monkeypatch.setitem(sys.modules, "pathlib._local", SimpleNamespace(PosixPath=saved))
    torch.save(torch.load(paco) | {"args": argparse.Namespace(data=saved())}, file := tmp_path / "f.pth")
    assert zoo.convert(file, "paco", tmp_path / "out", arch=PACO).name == f"{PACO}.paco_f"


def test_another_familys_file_is_refused(paco: Path, tmp_path: Path) -> None:
    for family in ("moco", "gpaco", "ft", "pico", "solo-learn", "timm"):
        refusal(paco, family, tmp_path, arch="resnet18")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"family": "mocov3"}, 'Did you mean "moco-v3"?'),
        ({"arch": "cifar_resnet2O"}, 'Did you mean "cifar_resnet'),
        ({"arch": "resnetblur18"}, "--arch"),  # which computes something else with these names
        ({"model_args": {"pretrained": True}}, "pretrained cannot be part of a release"),
        ({"encoder": "key"}, "--encoder: found key"),
        ({"name": f"x{ESCAPE}"}, "name"),
        ({"label_order": "random"}, "--label-order: found random"),
        ({"preprocess": {"mean": (math.nan, 0.5, 0.5)}}, '"mean.0": found nan'),
        ({"preprocess": {"size": 64}}, 'unknown key "size"'),
        ({"class_counts": [1, 2]}, "class counts: found 1, 2, expected 7"),
        ({"class_counts": [1.9] * 7}, "class counts: found 1.9"),
        ({"labels": [*"abcdef", f"g{ESCAPE}"]}, "of class 6"),
        ({"labels": "digits"}, "found 10 labels, expected 7"),
    ],
    ids=str,
)
def test_options_that_cannot_be(paco: Path, tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    given = {"family": "paco", "arch": PACO, **options}
    assert expected in refusal(paco, given.pop("family"), tmp_path, **given)


def test_files_that_are_no_checkpoints(paco: Path, tmp_path: Path) -> None:
    file, whole = tmp_path / "f.pth", paco.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\x80\x02<a", b"\x08" + bytes(7) + b"{" * 8):
        file.write_bytes(content)
        assert "f.pth: damaged" in refusal(file, "paco", tmp_path)
    assert "no such file" in refusal(tmp_path / "absent.pth", "moco", tmp_path)
    made.save(file, made.PaCo(generalised=True))
    assert "holds no momentum encoder" in refusal(file, "gpaco", tmp_path, encoder="momentum")
    endless: dict[str, Any] = {"tensor": torch.zeros(1)}
    endless["again"] = endless
    for plain in ([torch.zeros(2)], {"epoch": 3, ESCAPE: {}}, {"state_dict": endless}):
        torch.save(plain, file)
        assert "f.pth: " in refusal(file, "moco", tmp_path)


class Hostile:
    """Unpickling this creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


class Sneaky(Hostile):
    """The same through the state of a class that authors save and that is let through."""

    def __reduce__(self) -> tuple[Any, ...]:
        return argparse.Namespace, (), {"__class__": Hostile(self.marker)}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", [Hostile, Sneaky])
def test_a_hostile_pickle_does_not_run(tmp_path: Path, zipped: bool, kind: type[Hostile]) -> None:
    marker, file = tmp_path / "marker", tmp_path / "f.pth"
    content = {"state_dict": {**made.MoCo().state_dict(), "payload": kind(marker)}}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    assert '"posix.system"' in refusal(file, "moco", tmp_path, arch="resnet18")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Hostile(marker)))  # the payload is a working one
    assert marker.exists()


def test_a_release_is_not_overwritten_and_no_recipe(paco: Path, tmp_path: Path) -> None:
    zoo.convert(paco, "paco", tmp_path / "out", arch=PACO)
    with pytest.raises(ReleaseError, match="holds a release already"):
        zoo.convert(paco, "paco", tmp_path / "out", arch=PACO)
    with pytest.raises(RecipeError, match=r"unknown key \"converted\""):
        Recipe.load(tmp_path / "out" / "recipe.yaml")
