"""Files that want to harm, and options that cannot be: one plain line, and soon."""

from __future__ import annotations

import io
import pickle
import resource
import tarfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo.conversion.convert import ConvertedRecipe
from zoo.conversion.listing import shown, summary
from zoo.conversion.options import default_name

import zoo
from tests import convert_helpers as made
from tests import warm
from tests.test_convert_errors import PACO, changed, refusal
from tests.test_convert_errors import paco as paco  # a fixture
from zoo.errors import RecipeError
from zoo.recipe import Recipe

ESCAPE = "\x1b[2J\x1b]0;owned\x07"


@pytest.mark.parametrize(
    "options",
    [
        {"name": "resnet/../x"},
        {"name": "-x"},
        {"name": "x" * 97},
        {"labels": ["a", "b", "c", "d", "e", "f", f"g{ESCAPE}"]},
        {"labels": ["a", "b", "c", "d", "e", "f", " "]},
        {"size": 5000},
        {"size": 4000, "crop_pct": 0.5},
        {"mean": (0.5, 0.5)},
        {"dataset": "x" * 10_001},
    ],
    ids=str,
)
def test_options_are_checked_before_the_file_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    message = refusal(tmp_path / "absent.pth", "paco", tmp_path, **options)
    assert message.startswith(("name: ", "labels: ", "preprocessing: ", "dataset: "))
    assert "absent.pth" not in message
    assert message.isprintable()
    assert "^[" not in message  # no pattern of a regular expression


def test_labels_may_have_any_letters(paco: Path, tmp_path: Path) -> None:
    labels = ["Ä\u00a0ö", "日本", "a b", "é", "x-y", "1", "👩\u200d🚀"]
    assert zoo.convert(paco, "paco", tmp_path / "out", arch=PACO, labels=labels).class_names == tuple(labels)


def test_an_archive_of_tar_is_told_without_advice_to_run_its_code(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "model.tar", "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    message = refusal(tmp_path / "model.tar", "moco", tmp_path)
    assert "a tar archive of torch before 0.2" in message
    assert "weights_only" not in message


def test_the_record_of_a_conversion_is_no_recipe(paco: Path, tmp_path: Path) -> None:
    release = zoo.convert(paco, "paco", tmp_path / "out", arch=PACO)
    ConvertedRecipe.model_validate(release.recipe)
    with pytest.raises(
        RecipeError, match=r"cannot be trained; .*zoo finetune RECIPE --init FOLDER"
    ) as caught:
        Recipe.load(tmp_path / "out" / "recipe.yaml")
    assert "missing key" not in str(caught.value)


def test_names_are_shown_escaped_and_cut() -> None:
    assert shown("layer1.0.conv1.weight") == "layer1.0.conv1.weight"
    assert shown("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
    assert len(shown("k" * 100_000)) == len(shown("\x1b" * 100_000)) == 200
    assert summary([ESCAPE, "b"]).isprintable()


@pytest.mark.parametrize("where", ["state_dict", "entry", "twice", "nothing"])
def test_a_key_that_controls_the_terminal_is_not_printed(paco: Path, tmp_path: Path, where: str) -> None:
    long = ESCAPE * 10_000
    content: dict[str, Any] = torch.load(paco)
    if where == "state_dict":
        content["state_dict"][long] = torch.zeros(1)
    elif where == "entry":
        content[long] = {"x": torch.zeros(1)}
    elif where == "twice":
        content["state_dict"] |= {long: torch.zeros(1), f"module.{long}": torch.zeros(1)}
    else:
        content = {long: 1}
    torch.save(content, tmp_path / "f.pth")
    message = refusal(tmp_path / "f.pth", "paco", tmp_path)
    assert "\\x1b" in message
    assert message.replace(str(tmp_path), "").isprintable()
    assert len(message) < 2000


def test_a_recipe_does_not_hold_what_controls_the_terminal(paco: Path, tmp_path: Path) -> None:
    torch.save({**torch.load(paco), ESCAPE: 1, "epoch": 10**500}, tmp_path / "f.pth")
    release = zoo.convert(tmp_path / "f.pth", "paco", tmp_path / "out", arch=PACO)
    assert release.recipe["converted"]["left_out"]["not weights"].isprintable()
    assert release.recipe["converted"]["epoch"] is None


class _Bytes:
    def __reduce__(self) -> tuple[Any, ...]:
        return bytearray, (1 << 33,)


@pytest.mark.parametrize("how", ["archive", "upper case", "old", "plain"])
def test_a_pickle_that_fills_the_memory_is_not_called(tmp_path: Path, how: str) -> None:
    file = tmp_path / "f.pth"
    if how == "plain":
        file.write_bytes(pickle.dumps(_Bytes(), protocol=2))
    else:
        torch.save({"a": _Bytes()}, file, _use_new_zipfile_serialization=how != "old")
    if how == "upper case":
        with zipfile.ZipFile(file) as archive, zipfile.ZipFile(tmp_path / "g.pth", "w") as other:
            for entry in archive.infolist():
                other.writestr(entry.filename.replace("data.pkl", "DATA.PKL"), archive.read(entry))
        file = tmp_path / "g.pth"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert '"builtins.bytearray", with which a few bytes' in refusal(file, "moco", tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


@pytest.mark.parametrize("unknown", [True, False])
def test_very_many_keys_end_soon(paco: Path, tmp_path: Path, unknown: bool) -> None:
    tensor, prefix = torch.zeros(1), "x" if unknown else "encoder_q.fc."
    torch.save({"state_dict": {f"{prefix}{index}": tensor for index in range(100_000)}}, tmp_path / "f.pth")
    start = time.process_time()
    assert "holds more than 20,000 tensors" in refusal(tmp_path / "f.pth", "paco", tmp_path)
    assert time.process_time() - start < 20  # without the limit it is minutes


@pytest.mark.parametrize("key", ["module.encoder_q.conv1.weight", "module.linear.weight"])
def test_complex_weights_keep_no_imaginary_part_silently(paco: Path, tmp_path: Path, key: str) -> None:
    file = changed(paco, tmp_path / "f.pth", lambda state: state.update({key: state[key] * (1 + 2j)}))
    assert "the weights are complex numbers, expected real ones" in refusal(file, "paco", tmp_path)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("moco_ckpt.best.pth.tar", "resnet50.moco_best"),
        ("r-50-1000ep.pth.tar", "resnet50.moco_r_50_1000ep"),
        ("epoch=3-step=400.ckpt", "resnet50.moco_epoch_3_step_400"),
        ("v1.2.safetensors", "resnet50.moco_v1_2"),
        ("checkpoint", "resnet50.moco"),
    ],
)
def test_the_default_name_keeps_what_the_file_s_name_says(file: str, expected: str) -> None:
    assert default_name("resnet50", "moco", file) == expected


def test_the_command_prints_no_escapes(tmp_path: Path) -> None:
    state: Mapping[str, Any] = {**made.MoCo().state_dict(), ESCAPE: torch.zeros(1)}
    torch.save({"state_dict": state}, tmp_path / "f.pth")
    command = ["convert", str(tmp_path / "f.pth"), "--family", "moco"]
    done = warm.zoo(*command, "--arch", "resnet18")
    assert done.returncode == 1
    assert "\\x1b[2J" in done.stderr
    assert "\x1b" not in done.stderr
