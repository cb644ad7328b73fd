"""What a Python program may give where a release is named, and what it is told of anything else."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zoo
from zoo.errors import ZooError
from zoo.experiments.pretraining import plan_finetuning
from zoo.experiments.records import find
from zoo.hub import named, resolve

PACO = "cifar_resnet20.paco_digits_lt50"


def test_a_release_that_is_open_stands_for_its_name_and_a_folder_for_its_path(made: zoo.Release) -> None:
    release = zoo.open(PACO)
    assert zoo.open(release).path == release.path
    weights = (zoo.load(each).state_dict().values() for each in (PACO, release))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    # another computer has it under this name
    by_name, by_release, of_folder = (
        plan_finetuning(None, init=each, data="digits")[0] for each in (PACO, release, made)
    )
    assert by_name == by_release
    assert [run.name for run in find([release])] == [PACO]
    assert named(zoo.open(made.path)) == made.path
    assert of_folder.init is not None and of_folder.init.release == str(made.path)


def test_a_release_of_the_hub_is_called_by_its_repository_and_commit_in_a_recipe(
    made: zoo.Release, tmp_path: Path
) -> None:
    """The folder in this machine's cache would mean nothing on another."""
    commit = "0123456789abcdef" * 2 + "01234567"
    snapshot = tmp_path / "hub" / "models--me--paco" / "snapshots" / commit
    shutil.copytree(made.path, snapshot)
    assert resolve(zoo.open(snapshot)).spelling == f"hf-hub:me/paco@{commit}"
    assert named(zoo.open(snapshot)) == snapshot  # where it lies is all that loading needs


@pytest.mark.parametrize(
    "use",
    [
        *(zoo.open, zoo.load, zoo.pull, zoo.diagnose, zoo.table, zoo.reproduce),
        lambda given: zoo.diagnose([PACO, given]),
        lambda given: zoo.push(given, "org/name"),
        lambda given: zoo.finetune(init=given, data="digits"),
        lambda given: zoo.compare(None, init=given, out="out"),
    ],
)
def test_anything_else_is_refused_by_its_kind(use: Callable[[Any], Any]) -> None:
    for given, kind in ((nn.Linear(2, 2), "a Linear"), (None, "nothing")):
        with pytest.raises(ZooError) as error:
            use(given)
        assert str(error.value) == f"release: found {kind}, expected a name, a folder or a Release"


def test_what_is_no_data_is_refused_by_its_kind(tmp_path: Path) -> None:
    for use in (zoo.reproduce, zoo.diagnose):
        with pytest.raises(ZooError, match=r'^image "image 0" cannot be read: found a int, expected a PIL'):
            use(PACO, data=[1], out=tmp_path / "out")
