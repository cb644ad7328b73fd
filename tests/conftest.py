"""Releases trained once for all tests that read them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import zoo
from zoo.release import Release

# Tests' models are tiny: a second thread gains nothing, and costs much where the cores are shared.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

BRIEF = (
    "training.epochs=12",
    "schedule.warmup_epochs=1",
    "training.checkpoint_every=12",
    "training.device=cpu",
)


@pytest.fixture(scope="session")
def paco(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """PaCo on long-tailed digits for a few seconds; read only."""
    out = tmp_path_factory.mktemp("releases") / "paco"
    return zoo.pretrain("cifar_resnet20.paco_digits_lt50", out=out, overrides=BRIEF)


@pytest.fixture(scope="session")
def moco(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """MoCo + FT on long-tailed digits for a few seconds; read only."""
    out = tmp_path_factory.mktemp("releases") / "moco"
    changes = (*BRIEF, "objective.feature_transform.start_epoch=2")
    return zoo.pretrain("cifar_resnet20.moco_v2_ft_digits_lt50", out=out, overrides=changes)


@pytest.fixture
def copied(paco: Release, tmp_path: Path) -> Path:
    """A copy of the PaCo release that a test may change."""
    import shutil

    return Path(shutil.copytree(paco.path, tmp_path / "copy"))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the record of verified files, here and in the processes that tests start, be no user's own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
