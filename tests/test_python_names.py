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
from zoo.experiments.records import find
from zoo.hub import named, resolve
from zoo.pretraining import plan_finetuning

PACO = "cifar_resnet20.paco_digits_lt50"


def test_a_release_that_is_open_stands_for_its_name_and_a_folder_for_its_path(paco: zoo.Release) -> None:
    release = zoo.open(PACO)
    assert zoo.open(release).path == release.path
    weights = (zoo.load(each).state_dict() for each in (PACO, release))
    assert all(torch.equal(a, b) for a, b in zip(*(each.values() for each in weights), strict=True))
    recipe, _ = plan_finetuning(None, init=release, data="digits")
    # another computer has it under this name
    assert recipe == plan_finetuning(None, init=PACO, data="digits")[0]
    assert [run.name for run in find([release])] == [PACO]
    assert named(zoo.open(paco.path)) == paco.path
    recipe, _ = plan_finetuning(None, init=paco, data="digits")
    assert recipe.init is not None and recipe.init.release == str(paco.path)


def test_a_release_of_the_hub_is_called_by_its_repository_and_commit_in_a_recipe(paco, tmp_path) -> None:
    """The folder in this machine's cache would mean nothing on another."""
    commit = "0123456789abcdef" * 2 + "01234567"
    snapshot = tmp_path / "hub" / "models--me--paco" / "snapshots" / commit
    shutil.copytree(paco.path, snapshot)
    assert resolve(zoo.open(snapshot)).spelling == f"hf-hub:me/paco@{commit}"
    assert named(zoo.open(snapshot)) == snapshot  # where it lies is all that loading needs


USES = [zoo.open, zoo.load, zoo.pull, zoo.diagnose, zoo.table, zoo.reproduce]
USES += [
    lambda given: zoo.diagnose([PACO, given]),
    lambda given: zoo.push(given, "org/name"),
    lambda given: zoo.finetune(init=given, data="digits"),
    lambda given: zoo.compare(None, init=given, out="out"),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("given", "kind"), [(nn.Linear(2, 2), "a Linear"), (3, "a int"), (None, "nothing")])
def test_anything_else_is_refused_by_its_kind(use: Callable[[Any], Any], given: Any, kind: str) -> None:
    with pytest.raises(ZooError) as error:
        use(given)
    assert str(error.value) == f"release: found {kind}, expected a name, a folder or a Release"


def test_what_is_no_data_is_refused_by_its_kind(tmp_path: Path) -> None:
    for use in (zoo.reproduce, zoo.diagnose):
        with pytest.raises(ZooError, match=r'^image "image 0" cannot be read: found a int, expected a PIL'):
            use(PACO, data=[1], out=tmp_path / "out")
