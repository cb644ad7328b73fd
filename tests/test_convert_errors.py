"""What a conversion refuses: each one clear line, before anything is written and without running the file."""

from __future__ import annotations

import argparse
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import zoo
from tests import convert_helpers as made
from tests.convert_helpers import changed, refusal
from zoo.conversion import FAMILIES
from zoo.errors import RecipeError, ReleaseError
from zoo.recipe import Recipe

PACO = "cifar_resnet20"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@pytest.fixture(scope="module")
def paco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(tmp_path_factory.mktemp("files") / "paco.pth.tar", made.randomised(made.PaCo()))


def with_state(**values: Any) -> Any:
    return lambda state: state.update({f"module.{key}": value for key, value in values.items()})


QUERY = "encoder_q.conv1.weight"
GIANT = torch.zeros(1).expand(1 << 20, 1 << 20)  # 4 TiB of a file of a few bytes
CHANGES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "unknown": (with_state(**{"extra.weight": torch.zeros(2)}), ("1 of", "extra.weight", "--leave-out")),
    "many": (
        with_state(mask=torch.zeros(1), **{f"decoder.{i}.weight": torch.zeros(1) for i in range(40)}),
        ("41 of", "mask, decoder.* (40)"),
    ),
    "escape": (with_state(**{ESCAPE * 10_000: torch.zeros(1)}), ("\\x1b",)),
    "missing": (
        lambda state: state.pop("module.encoder_q.layer3.2.bn2.running_var"),
        ("missing: layer3.2.bn2.running_var",),
    ),
    "shape": (with_state(**{QUERY: torch.zeros(16, 3, 5, 5)}), ("[16, 3, 5, 5] instead of [16, 3, 3, 3]",)),
    "no tensor": (with_state(**{QUERY: argparse.Namespace()}), ("conv1.weight is [0]",)),
    "not finite": (with_state(**{QUERY: torch.full((16, 3, 3, 3), math.nan)}), ("not finite: conv1.weight",)),
    "giant": (with_state(**{QUERY: GIANT}), (QUERY, "without values of its own")),
    "meta": (with_state(**{QUERY: torch.empty(16, 3, 3, 3, device="meta")}), (QUERY, "without values")),
    "giant centers": (with_state(**{"linear.weight": GIANT}), ("linear.weight", "without values")),
    "sparse": (with_state(**{"linear.weight": torch.zeros(7, 64).to_sparse()}), ("without values",)),
    "centers": (with_state(**{"linear.weight": torch.zeros(9, 64)}), ("centers", "[9, 64]")),
    "complex": (with_state(**{"linear.weight": torch.zeros(7, 64) * 1j}), ("centers", "complex64")),
    "twice": (lambda state: state.update({"linear.bias": torch.zeros(7)}), ("two tensors", "linear.bias")),
    "very many": (
        with_state(**{f"encoder_q.fc.{i}": torch.zeros(1) for i in range(30_000)}),
        ("more than 20,000",),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_keys_and_tensors_that_are_not_understood(paco: Path, tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    message = refusal(changed(paco, tmp_path / "f.pth", change), "paco", tmp_path, arch=PACO)
    assert all(words in message for words in expected), message
    assert len(message) < 2000


def test_unknown_keys_are_left_out_when_they_are_named(paco: Path, tmp_path: Path) -> None:
    state = with_state(**{"decoder.a": torch.zeros(1), "encoder_q.layer1.extra": torch.zeros(1)})
    file = changed(paco, tmp_path / "f.pth", state)
    assert 'no key of the file matches "decodr.*"' in refusal(file, "paco", tmp_path, leave_out=["decodr.*"])
    release = zoo.convert(file, "paco", tmp_path / "out", leave_out=["deco?er.*", "*.extra"])
    left_out = release.recipe["converted"]["left_out"]
    assert left_out["left out on request"] == "decoder.a, encoder_q.layer1.extra"


def test_what_lies_beside_the_weights(paco: Path, tmp_path: Path) -> None:
    content = torch.load(paco)
    torch.save({**content, "teacher": {"weight": torch.zeros(3)}}, tmp_path / "f.pth")
    assert "teacher.weight" in refusal(tmp_path / "f.pth", "paco", tmp_path)
    beside = {
        "args": argparse.Namespace(lr=0.03, path=Path("data"), __setstate__="not called"),
        "opt": argparse.Namespace(nested=argparse.Namespace(a=1)),
        "best_acc1": np.float64(67.5),
        "history": np.arange(3.0),
        ESCAPE: 1,
        "epoch": 10**500,
    }
    torch.save(content | beside, tmp_path / "f.pth")
    converted = zoo.convert(tmp_path / "f.pth", "paco", tmp_path / "out").recipe["converted"]
    assert converted["left_out"]["settings of the training"] == "args, opt"
    assert "best_acc1, history" in converted["left_out"]["not weights"]
    assert converted["left_out"]["not weights"].isprintable()
    assert converted["epoch"] is None


def test_two_encoders_of_one_kind_are_not_mixed(tmp_path: Path) -> None:
    model: Any = made.SoloLearnMoCo()
    model.encoder = torchvision.models.resnet18()  # as versions before 1.0.4 name the backbone
    model.encoder.fc = nn.Identity()
    message = refusal(made.save_lightning(tmp_path / "f.ckpt", model), "solo-learn", tmp_path)
    assert "120 of" in message and "encoder.* (120)" in message


FILES: dict[str, Any] = {
    "moco": lambda path: made.save(path, made.MoCo()),
    "moco-v3": lambda path: made.save(path, made.MoCoV3()),
    "paco": lambda path: made.save(path, made.PaCo()),
    "gpaco": lambda path: made.save(path, made.PaCo(generalised=True)),
    "ft": lambda path: made.save_ft(path, made.SingleHead(), made.SingleHead()),
    "pico": lambda path: made.save(path, made.PiCO()),
    "solo-learn": lambda path: made.save_lightning(path, made.SoloLearnMoCo()),
}


@pytest.mark.parametrize("family", FILES)
def test_a_wrong_family_is_told_the_right_one(tmp_path: Path, family: str) -> None:
    file = FILES[family](tmp_path / "file.pth")
    for other in FAMILIES.keys() - {family}:
        assert f"--family {family}" in refusal(file, other, tmp_path, arch="resnet18"), other


@pytest.mark.parametrize("arch", ["resnetblur18", "resnet18d", "seresnet18", "resnet34"])
def test_a_relative_of_the_architecture_is_refused_and_the_right_one_named(tmp_path: Path, arch: str) -> None:
    """Some have the same shapes and compute something else."""
    file = made.save(tmp_path / "f.pth.tar", made.MoCo())
    assert refusal(file, "moco", tmp_path, arch=arch).endswith("What fits: --arch resnet18")


def test_the_architecture_is_the_one_that_fits_or_that_the_file_names(tmp_path: Path) -> None:
    file = made.save(tmp_path / "last.pth.tar", made.MoCo(), arch="resnet50")  # the tensors are not that
    release = zoo.convert(file, "moco", tmp_path / "out", size=64)
    assert (release.config["architecture"], release.name) == ("resnet18", "resnet18.moco_last")
    options: dict[str, Any] = {"model_args": made.VIT, "size": 32}  # its size is all that tells them apart
    file = made.save(tmp_path / "f.pth.tar", made.MoCoV3(), arch="vit_small")
    both = "vit_small_patch16_224, vit_small_patch16_384"
    assert f"several architectures fit its encoder: {both}" in refusal(
        file, "moco-v3", tmp_path / "x", **options
    )
    file = made.save(tmp_path / "f.pth.tar", made.MoCoV3(), arch="vit_small_patch16_384")
    release = zoo.convert(file, "moco-v3", tmp_path / "vit", **options)
    assert release.config["architecture"] == "vit_small_patch16_384"


def test_an_argument_that_the_family_implies_leads_to_the_architecture_that_has_it(tmp_path: Path) -> None:
    file = made.save_lightning(tmp_path / "solo.ckpt", made.SoloLearnMoCo())
    message = refusal(file, "solo-learn", tmp_path, arch="resnet18")
    assert "stem_padding" in message and message.endswith("What fits: --arch resnet18_cifar")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"family": "mocov3"}, 'Did you mean "moco-v3"?'),
        ({"arch": "cifar_resnet2O"}, '"cifar_resnet2O". Did you mean'),
        ({"arch": "resnet18.a1_in1k"}, "without the tag"),
        ({"arch": None, "model_args": {"foo": 1}}, "foo"),
        ({"model_args": {"pretrained": True}}, "pretrained cannot be part of a release"),
        ({"model_args": {"num_classes": 5}}, "num_classes cannot be part of a release"),
        ({"encoder": "key"}, "\"encoder\": found 'key'"),
        ({"name": "resnet/../x"}, '"name"'),
        ({"name": f"x{ESCAPE}"}, '"name"'),
        ({"interpolation": "cubic"}, '"interpolation"'),
        ({"label_order": "random"}, '"label_order"'),
        ({"crop_pct": 1.5}, '"crop_pct"'),
        ({"size": 0}, '"size": found 0'),
        ({"size": "32"}, '"size"'),
        ({"mean": (math.nan, 0.5, 0.5)}, '"mean.0": found nan'),
        ({"std": np.array([1.0, 0.0, 1.0])}, '"std.1": found 0.0'),
        ({"mean": (0.5, 0.5)}, "mean: found 2 numbers"),
        ({"mean": "0.5"}, '"mean"'),
        ({"dataset": "x" * 10_001}, '"dataset"'),
        ({"class_counts": ["1"] * 7}, "class counts: found '1' of class 0"),
        ({"class_counts": [1, 2**63]}, "class counts: found 9223372036854775808 of class 1"),
        ({"class_counts": [True] * 7}, "class counts: found True of class 0"),
        ({"class_counts": [1, -4]}, "class counts: found -4 of class 1"),
        ({"class_counts": 7}, "class counts: found 7"),
        ({"class_counts": [1, 2]}, "found 2 class counts, expected 7"),
        ({"labels": ["a", "b"]}, "found 2 labels, expected 7"),
        ({"labels": ["a", "M\udce4use"]}, "labels: found 'M\\udce4use' of class 1"),
        ({"labels": [*"abcdef", f"g{ESCAPE}"]}, "of class 6"),
        ({"labels": "labels.txt"}, "labels: no file"),
        ({"labels": "digits"}, "found 10 labels, expected 7"),
    ],
    ids=str,
)
def test_options_that_cannot_be(paco: Path, tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    given = {"family": "paco", "arch": PACO, **options}
    assert expected in refusal(paco, given.pop("family"), tmp_path, **given)


def test_an_encoder_or_centers_that_the_file_lacks(tmp_path: Path) -> None:
    file = made.save(tmp_path / "gpaco.pth", made.PaCo(generalised=True))
    message = refusal(file, "gpaco", tmp_path, encoder="momentum")
    assert "holds no momentum encoder, only query encoder, centers; choose --encoder query" in message
    moco = made.save(tmp_path / "moco.pth", made.MoCo())
    assert "the file has no centers" in refusal(moco, "moco", tmp_path, class_counts=[1, 2])
    state = {f"module.{key}": value for key, value in nn.Linear(512, 7).state_dict().items()}
    torch.save({"epoch": 60, "classifier": state, "optimizer": {}}, tmp_path / "f.pth")
    assert "a linear classifier alone" in refusal(tmp_path / "f.pth", "ft", tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_one_error(paco: Path, tmp_path: Path, zipped: bool, kept: float) -> None:
    torch.save(torch.load(paco), tmp_path / "f.pth", _use_new_zipfile_serialization=zipped)
    data = (tmp_path / "f.pth").read_bytes()
    (tmp_path / "f.pth").write_bytes(data[: int(kept * len(data))])
    assert "f.pth: damaged, or no checkpoint" in refusal(tmp_path / "f.pth", "paco", tmp_path)


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    draw = random.Random(0)
    for number, start in enumerate((b"", b"\x80\x02", b"PK", b"PK\x03\x04") * 5):
        (tmp_path / "f.pth").write_bytes(start + b"<" + draw.randbytes(3 ** (number % 6)))
        assert "damaged, or no checkpoint" in refusal(tmp_path / "f.pth", "moco", tmp_path)
    for protocol in range(6):
        (tmp_path / "f.pth").write_bytes(pickle.dumps({"a": torch.zeros(2)}, protocol))
        refusal(tmp_path / "f.pth", "moco", tmp_path)
    (tmp_path / "f.safetensors").write_bytes(b"\x08" + bytes(7) + b"{" * 8)
    assert "damaged safetensors" in refusal(tmp_path / "f.safetensors", "moco", tmp_path)
    (tmp_path / "f.safetensors").write_bytes((tmp_path / "f.pth").read_bytes())
    assert "rename it" in refusal(tmp_path / "f.safetensors", "moco", tmp_path)
    (tmp_path / "f.pth").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    assert "Git LFS's pointer" in refusal(tmp_path / "f.pth", "moco", tmp_path)
    assert "found a folder" in refusal(tmp_path, "moco", tmp_path)
    assert "no such file" in refusal(tmp_path / "absent.pth", "moco", tmp_path)
    endless: dict[str, Any] = {"tensor": torch.zeros(1)}
    endless["again"] = endless
    for content, expected in (
        ([torch.zeros(2)], "found a list, expected a dict"),
        ({"epoch": 3, "optimizer": {}}, "holds no weights: found epoch, optimizer"),
        ({ESCAPE: 1}, "\\x1b"),
        ({"state_dict": endless}, "nested too deeply"),
    ):
        torch.save(content, tmp_path / "f.pth")
        assert expected in refusal(tmp_path / "f.pth", "moco", tmp_path)


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


class Bytes(Hostile):
    """A few bytes that fill the memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (1 << 33,)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("kind", "named"), [(Hostile, "posix.system"), (Sneaky, "posix.system"), (Bytes, "builtins.bytearray")]
)
def test_a_hostile_pickle_does_not_run(tmp_path: Path, zipped: bool, kind: type[Hostile], named: str) -> None:
    marker, file = tmp_path / "marker", tmp_path / "f.pth"
    content = {"state_dict": {**made.MoCo().state_dict(), "payload": kind(marker)}}
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    assert f'"{named}"' in refusal(file, "moco", tmp_path, arch="resnet18")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Hostile(marker)))  # the payload is a working one
    assert marker.exists()


def test_a_compressed_archive_is_not_unpacked(paco: Path, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(paco) as archive,
        zipfile.ZipFile(tmp_path / "f.pth", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for entry in archive.infolist():
            bomb.writestr(entry.filename, archive.read(entry))
    assert "a compressed archive" in refusal(tmp_path / "f.pth", "paco", tmp_path)


def test_a_release_is_not_overwritten_and_no_recipe(paco: Path, tmp_path: Path) -> None:
    zoo.convert(paco, "paco", tmp_path / "out")
    with pytest.raises(ReleaseError, match="holds a release already"):
        zoo.convert(paco, "paco", tmp_path / "out")
    with pytest.raises(RecipeError, match=r"cannot be trained"):
        Recipe.load(tmp_path / "out" / "recipe.yaml")


def test_a_killed_conversion_leaves_nothing_that_the_next_one_does_not_remove(
    paco: Path, tmp_path: Path
) -> None:
    out = tmp_path / "releases" / "out"
    code = (
        "import sys, time, zoo\n"
        "from zoo.release import write\n"
        "write.write_tensors = lambda *_: time.sleep(600)\n"  # while the folder is gathered
        "zoo.convert(sys.argv[1], 'paco', sys.argv[2])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(paco), str(out)])
    while not list(out.parent.glob(".out.*")) and process.poll() is None:
        time.sleep(0.05)
    zoo.convert(paco, "paco", out)
    assert len(list(out.parent.glob(".*"))) == 1  # of the one that runs
    process.send_signal(signal.SIGKILL)
    process.wait()
    shutil.rmtree(out)
    zoo.convert(paco, "paco", out).verify()
    assert not list(out.parent.glob(".*"))
