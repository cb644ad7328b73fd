"""What `zoo sweep` says before its first training and after each, and of data that are not where it looks."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import zoo
from zoo.api.sweeps import work_queue
from zoo.api.sweeps.estimate import Pace, beginning
from zoo.api.sweeps.grid import plan_sweep
from zoo.errors import DataError
from zoo.training import Recipe

CE = "cifar_resnet20.ce_digits_lt50"
E100 = "cifar_resnet32.ce_autoaugment_cifar100_lt100_e100"


def test_a_sweep_says_how_much_it_is_where_it_goes_and_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(recipe: Any, *, out: Path, **_: Any) -> None:
        (out / "config.json").parent.mkdir(parents=True, exist_ok=True)
        (out / "config.json").write_text("x" * 1000)

    monkeypatch.setattr(work_queue, "pretrain", trained)
    monkeypatch.setattr("zoo.api.sweeps.sweep._conclude", lambda *_: None)
    times = iter(range(0, 10_000, 100))
    monkeypatch.setattr("zoo.api.sweeps.sweep.Pace", lambda out: Pace(out, lambda: next(times)))
    out = tmp_path / "out"
    zoo.sweep(CE, out=out, vary={"optimizer.lr": [0.01, 0.1]}, seeds=[0, 1])
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f'4 runs (2 points x seeds 0, 1) into "{out}"'
    assert said[1].startswith(f"a run of {CE} as it is, without --set, takes: ")
    assert said[2:5] == [
        "1 of 4: lr 0.01, seed 0",
        "1 finished, 3 left: at 2 min a run, the mean of 1 here, 5 min by one process",
        "2 of 4: lr 0.1, seed 0",
    ]
    assert said[-1] == "4 of 4: lr 0.1, seed 1"  # nothing is left
    monkeypatch.setattr("zoo.api.sweeps.sweep._require_same", lambda *_: None)
    zoo.sweep(CE, out=out, vary={"optimizer.lr": [0.01, 0.1]}, seeds=[0, 1, 2], resume=True)
    assert capsys.readouterr().err.startswith(
        f'6 runs (2 points x seeds 0, 1, 2) into "{out}", 4 of them finished\n'
    )


def test_a_shipped_sweep_says_what_its_file_says_that_it_takes() -> None:
    runs = plan_sweep([CE], {}, [0, 1, 2], None, Path("out")).runs
    texts = beginning(runs, "cifar100_lt", Path("runs"), 0)
    assert texts[1].startswith("as cifar100_lt.yaml is, without --set, it takes: 72 runs; on one H100")


def test_a_disk_that_will_be_full_is_said_by_what_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run, *_) = plan_sweep([CE], {}, [0, 1, 2], None, tmp_path).runs
    (run.folder / "run").mkdir(parents=True)
    for name in ("model.safetensors", "run/step.pt"):
        (run.folder / name).write_bytes(b"x" * 2_000)
    pace = Pace(tmp_path, lambda: 0.0)
    for free, warned in ((7_999, True), (8_000, False)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        _, *more = pace.done(run, 1, 2)
        assert bool(more) == warned
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5_000))
    (_, text) = pace.done(run, 1, 2)
    assert re.search(r"a run takes 4 kB, the 2 that are left 8 kB, and 5 kB are free; make room", text)


def of_parquet_files(folder: Path) -> Path:
    """A recipe of somebody's own that names parquet files."""
    source = "{kind: parquet, train: train-*.parquet, test: test-*.parquet, image: img, label: fine_label}"
    file = folder / "recipe.yaml"
    file.write_text(Recipe.load(E100, [f"data.source={source}"]).to_yaml())
    return file


@pytest.mark.parametrize("given", ["", "cifar-100-python"])
def test_an_archive_in_place_of_parquet_files_is_taken_only_for_listed_images(
    given: str, tmp_path: Path
) -> None:
    archive = tmp_path / "cifar-100-python"
    archive.mkdir()
    recipe = of_parquet_files(tmp_path)
    said = r"no (train|test) files"
    changed = {"training.epochs": [100]}
    for call in (
        lambda: zoo.pretrain(recipe, out=tmp_path / "out", data=tmp_path / given),
        lambda: zoo.sweep(str(recipe), out=tmp_path / "out", data=tmp_path / given, vary=changed),
    ):
        with pytest.raises(DataError, match=said):
            call()
    # a release whose images are listed is read out of the archive, which is empty here
    for call in (
        lambda: zoo.evaluate(E100, "knn", tmp_path / given),
        lambda: zoo.reproduce(E100, data=tmp_path / given, out=tmp_path / "out"),
    ):
        with pytest.raises(DataError, match=rf"cifar100: the archive's folder \"{archive}\" is not whole"):
            call()
    assert not (tmp_path / "out").exists()


def test_a_data_folder_that_is_not_there_is_said_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        zoo.sweep(E100, out=tmp_path / "out", data=tmp_path / "dta")
    assert not list(tmp_path.iterdir())
