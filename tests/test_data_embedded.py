"""A folder that is given for data: the place of a recipe's own data, or that of other data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets
from typer.testing import CliRunner

import zoo
from tests.test_api import FOLDER, picture_folder
from zoo import api
from zoo.cli import app
from zoo.config import parse
from zoo.data import DataConfig, open_dataset
from zoo.data.any_data import resolve
from zoo.data.embedded import reads_folder, without_partial_labels
from zoo.errors import DataError
from zoo.recipe import Recipe
from zoo.report import diagnose as diagnosis

PACO, CE = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.ce_digits_lt50"
CIFAR = "cifar_resnet32.paco_cifar100_lt100"  # its recipe may download
TINY = {"training.epochs": [1], "schedule.warmup_epochs": [0], "training.device": ["cpu"]}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test at the first byte that torchvision would fetch."""
    for each in (datasets.CIFAR10, datasets.CIFAR100, datasets.FashionMNIST):
        monkeypatch.setattr(each, "download", lambda self: pytest.fail("downloaded"))


def begun(out: Path) -> Path:
    """Return the folder of a run that has only begun."""
    run = out.parent / "begun" / "run"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(Recipe.load(CE).to_yaml())
    return run


USES: list[Callable[[Any, Path], Any]] = [
    lambda data, out: zoo.evaluate(CIFAR, "knn", data, save=False),
    lambda data, out: zoo.embed(CIFAR, data),
    lambda data, out: zoo.predict(CIFAR, data),
    lambda data, out: zoo.pretrain(CIFAR, out=out, data=data),
    lambda data, out: zoo.pretrain(None, arch="cifar_resnet20", out=out, data=data),
    lambda data, out: zoo.finetune(init=CIFAR, out=out, data=data),
    lambda data, out: zoo.finetune(CE, init=PACO, out=out, data=data),
    lambda data, out: zoo.compare(None, init=CIFAR, out=out, data=data),
    lambda data, out: zoo.sweep(CIFAR, out=out, data=data, vary={"optimizer.lr": [0.1]}),
    lambda data, out: zoo.diagnose(CIFAR, out=out, data=data),
    lambda data, out: zoo.reproduce(CIFAR, out=out, data=data),
    lambda data, out: api.profile_step(Recipe.load(CIFAR), out=out, data=data),
]


@pytest.mark.parametrize("data", ["/nowhere", "folder:/nowhere", "cifar100:/nowhere?download=true"])
@pytest.mark.parametrize("use", USES)
def test_a_folder_that_is_not_there_is_one_line_and_is_not_made(
    use: Callable[[Any, Path], Any], data: str, tmp_path: Path
) -> None:
    place = data.replace("/nowhere", str(tmp_path / "nowhere"))
    with pytest.raises(zoo.ZooError) as found:
        use(place, tmp_path / "out")
    assert "no folder" in str(found.value) and "\n" not in str(found.value)
    assert not (tmp_path / "nowhere").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda data, out: zoo.reproduce(PACO, out=out, data=data),
        lambda data, out: zoo.diagnose(PACO, begun(out), out=out, data=data),
        lambda data, out: zoo.sweep(CE, PACO, out=out, data=data, vary=TINY),
        lambda data, out: api.profile_step(Recipe.load(CIFAR), out=out, data=data),
    ],
)
def test_other_images_are_refused_where_a_recipes_own_are_meant(
    use: Callable[[Path, Path], Any], tmp_path: Path
) -> None:
    data = picture_folder(tmp_path / "photos")
    before = sorted(data.rglob("*"))
    with pytest.raises(DataError, match=r"found other data, .*photos., expected the recipe's own: "):
        use(data, tmp_path / "out")
    assert sorted(data.rglob("*")) == before and not (tmp_path / "out").exists()


def put(path: Path) -> None:
    """Make an image or a file, empty, or a folder, where the name has no ending."""
    if not path.suffix:
        path.mkdir(parents=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@pytest.mark.parametrize(
    ("source", "inside", "kind"),
    [
        ("cifar100", "train/a/1.png val/a/1.png", "folder"),
        ("fashion_mnist", "cats/1.png dogs/1.png", "folder"),
        ("cifar10", "1.png", "folder"),
        ("digits", "cifar-100-python", "cifar100"),
        ("digits", "train/a/1.png", "folder"),
        # the own data, or a place to download them to
        ("cifar100", "cifar-10-batches-py", None),  # torchvision's archives share a folder
        ("fashion_mnist", "FashionMNIST/raw", None),
        ("cifar10", "flowers/jpg/1.png", None),
        ("cifar10", "README.md cifar-10-python.tar.gz images.zip .cache/1.png ._1.png", None),
        ("cifar10", "plain_text/train-00000-of-00001.parquet cats/1.png", None),
        ("cifar10", "train-00000-of-00001.parquet", None),
        ("cifar10", "cifar-10-batches-py train/a/1.png", None),
        ("folder", "train/a/1.png", None),
        ("folder", "val/a/1.png", None),
    ],
)
def test_a_folder_is_other_data_where_the_own_do_not_lie_in_it(
    source: str, inside: str, kind: str | None, tmp_path: Path
) -> None:
    for name in inside.split():
        put(tmp_path / name)
    section = {"kind": source, **({"download": True} if source[:5] in ("cifar", "fashi") else {})}
    given = resolve(tmp_path, parse(DataConfig, {"source": section}, "r"))
    assert given.is_own == (kind is None) and given.root == tmp_path
    assert given.config.source.kind == (kind or source)


@pytest.mark.parametrize("given", ["{}", "{}/", ".", "link", "{}/.."])
def test_an_archive_is_found_however_its_folder_is_written(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "data" / "cifar-100-python"
    for name in ("train", "test", "meta"):
        put(archive / f"{name}.x")
        (archive / f"{name}.x").rename(archive / name)
    monkeypatch.chdir(archive)
    (archive / "link").symlink_to(archive)
    own = parse(DataConfig, {"source": {"kind": "cifar100", "download": True}}, "r")
    assert resolve(given.format(archive), own).is_own


def test_a_folder_named_like_a_spec_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar100").mkdir()
    given: list[Any] = []
    monkeypatch.setattr(api, "pretrain", lambda recipe, data, **_: given.append(data))
    monkeypatch.setattr("zoo.cli.training._announce", lambda _: None)
    for name in ("cifar100", "./cifar100"):
        assert CliRunner().invoke(app, ["pretrain", CIFAR, "--data", name]).exit_code == 0
    assert given == [Path("cifar100")] * 2


def test_candidates_of_digits_are_read_from_a_folder_and_their_probes_need_none(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.ones((1250, 10), dtype=bool))
    section = {"source": {"kind": "digits"}, "partial_labels": {"kind": "file", "path": "c.npy"}}
    config = parse(DataConfig, section, "r")
    assert reads_folder(config)
    candidates = open_dataset(config, "train", tmp_path).candidates
    assert candidates is not None and candidates.all()
    assert len(open_dataset(config, "test", tmp_path)) == 547
    plain, root = without_partial_labels(config, tmp_path)
    assert plain.partial_labels is None and root is None


def test_a_sweep_gives_the_folder_to_the_recipes_that_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = picture_folder(tmp_path / "photos")
    given: dict[str, Path | None] = {}

    def trained(recipe: Any, *, out: Path, data: Path | None, **_: Any) -> None:
        given[recipe.data.source.kind] = data
        out.mkdir(parents=True)
        (out / "config.json").write_text("{}")

    module = sys.modules["zoo.experiments.sweep"]  # the room has a function of this name
    monkeypatch.setattr(module, "pretrain", trained)
    monkeypatch.setattr(module, "_conclude", lambda *_: None)
    sources = {"digits": {"kind": "digits"}, "photos": {"kind": "folder"}}
    vary = {**TINY, "data.source": sources, "data.long_tail": [None]}
    zoo.sweep(CE, out=tmp_path / "out", data=data, vary=vary, seeds=[0])
    assert given == {"digits": None, "folder": data}


@pytest.mark.usefixtures("no_pictures")
def test_a_report_looks_at_each_ones_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "draw", lambda *_: [])
    data = picture_folder(tmp_path / "photos")
    made = zoo.pretrain(CE, out=tmp_path / "made", data=data, overrides=[*FOLDER, "training.device=cpu"])
    found = zoo.diagnose(PACO, made.path, data=data, out=tmp_path / "report", sample=12)
    assert [each.look is not None and each.look.data for each in found.subjects] == ["digits", "photos"]
