"""A folder that is given for data: one of which nothing would be read is refused, not passed over."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets
from typer.testing import CliRunner
from zoo.data.given_root import require_use

import zoo
from tests.test_api import FOLDER, picture_folder
from zoo import api
from zoo.api.diagnoses import diagnose as diagnosis
from zoo.api.sweeps import work_queue
from zoo.cli import app
from zoo.config import parse
from zoo.data import DataConfig, open_dataset
from zoo.data.embedded import reads_folder, without_partial_labels
from zoo.errors import DataError
from zoo.training import Recipe

PACO, CE = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.ce_digits_lt50"
TINY = {"training.epochs": [1], "schedule.warmup_epochs": [0], "training.device": ["cpu"]}


def begun(out: Path) -> Path:
    """Return the folder of a run that has only begun."""
    run = out.parent / "begun" / "run"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(Recipe.load(CE).to_yaml())
    return run


@pytest.mark.parametrize(
    "use",
    [
        lambda data, out: zoo.evaluate(PACO, "knn", data),
        lambda data, out: zoo.evaluate(PACO, "knn", f"digits:{data}"),
        lambda data, out: zoo.pretrain(PACO, out=out, data=data),
        lambda data, out: api.profile_step(Recipe.load(PACO), out=out, data=data),
        lambda data, out: zoo.finetune(init=PACO, out=out, data=data),
        lambda data, out: zoo.finetune(CE, init=PACO, out=out, data=data),
        lambda data, out: zoo.compare(None, init=PACO, out=out, data=data),
        lambda data, out: zoo.compare(CE, init=PACO, out=out, data=data),
        lambda data, out: zoo.reproduce(PACO, out=out, data=data),
        lambda data, out: zoo.diagnose(PACO, begun(out), out=out, data=data),
        lambda data, out: zoo.sweep(CE, PACO, out=out, data=data, vary=TINY),
    ],
)
def test_a_folder_for_digits_is_refused_with_what_it_would_be(
    use: Callable[[Path, Path], Any], tmp_path: Path
) -> None:
    data, out = picture_folder(tmp_path / "photos"), tmp_path / "out"
    with pytest.raises(DataError) as found:
        use(data, out)
    assert str(found.value) == (
        f'data: found the folder "{data}", of which nothing would be read: the source of these data is '
        "digits, which come with scikit-learn: leave --data out. For the images there a recipe "
        f"has --set 'data.source={{kind: folder}}', a command that takes other data than a release's own "
        f"--data folder:{data}"
    )
    assert not (out / "config.json").exists()


def put(path: Path) -> None:
    """Make an image or a file, empty, or a folder, where the name has no ending."""
    if not path.suffix:
        path.mkdir(parents=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@pytest.mark.parametrize(
    ("inside", "spec", "setting"),
    [
        (("train/a/1.png", "test"), "folder:{}?test=test", "folder, test: test"),
        (("train/a/1.png", "val", "test"), "folder:{}", "folder"),
        (("cifar-100-python",), "cifar100:{}", "cifar100"),
        (("train-00000-of-00001.parquet",), "parquet:{}", "parquet"),
    ],
)
def test_the_hint_is_what_reads_the_folder(
    inside: tuple[str, ...], spec: str, setting: str, tmp_path: Path
) -> None:
    for name in inside:
        put(tmp_path / name)
    with pytest.raises(DataError) as found:
        require_use([parse(DataConfig, {"source": {"kind": "digits"}}, "r")], tmp_path)
    assert f"--data {shlex.quote(spec.format(tmp_path))}" in str(found.value)
    assert f"data.source={{kind: {setting}}}" in str(found.value)
    read = zoo.data.parse_data_spec(spec.format(tmp_path))
    assert read[1] == tmp_path and read[0].source.kind == setting.partition(",")[0]


@pytest.mark.parametrize("name", ["shards", "my shards?"])
def test_the_hint_for_files_one_folder_below_names_that_folder(name: str, tmp_path: Path) -> None:
    below = tmp_path / name
    below.mkdir()
    (below / "train-00000-of-00001.parquet").touch()
    with pytest.raises(DataError) as found:
        require_use([parse(DataConfig, {"source": {"kind": "digits"}}, "r")], tmp_path)
    setting = "--set 'data.source={kind: parquet}'"
    assert f"a recipe has --data {shlex.quote(str(below))} {setting}" in str(found.value)
    assert (f"--data parquet:{below}" in str(found.value)) == ("?" not in name)  # a spec cannot say that


CIFAR = "cifar_resnet32.paco_cifar100_lt100"  # its recipe may download


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test at the first byte that torchvision would fetch."""
    for each in (datasets.CIFAR10, datasets.CIFAR100, datasets.FashionMNIST):
        monkeypatch.setattr(each, "download", lambda self: pytest.fail("downloaded"))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "use",
    [
        lambda data, out: zoo.evaluate(CIFAR, "knn", data, save=False),
        lambda data, out: zoo.pretrain(CIFAR, out=out, data=data),
        lambda data, out: zoo.finetune(init=CIFAR, out=out, data=data),
        lambda data, out: zoo.sweep(CIFAR, out=out, data=data, vary={"optimizer.lr": [0.1]}),
    ],
)
def test_nothing_is_downloaded_into_a_folder_of_own_images(
    use: Callable[[Path, Path], Any], tmp_path: Path
) -> None:
    data = picture_folder(tmp_path / "photos")
    before = sorted(data.rglob("*"))
    with pytest.raises(DataError) as found:
        use(data, tmp_path / "out")
    assert str(found.value) == (
        f'data: found the folder "{data}", of which nothing would be read: the source of these data is '
        "cifar100, which is not there and would be downloaded into it: for that give another folder. For the "
        "images there a recipe has --set 'data.source={kind: folder}', a command that takes other data than "
        f"a release's own --data folder:{data}"
    )
    assert sorted(data.rglob("*")) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("source", "inside", "is_refused"),
    [
        ("cifar100", "train.parquet", True),
        ("fashion_mnist", "train-00000-of-00001.parquet", True),
        ("fashion_mnist", "train/a/1.png", True),
        ("cifar100", "cifar-10-batches-py", False),  # torchvision's archives share a folder
        ("fashion_mnist", "FashionMNIST/raw", False),
        # so do the Hub's data sets, each in a folder of its own
        ("cifar10", "cifar100/train-00000-of-00001.parquet", False),
        ("cifar10", "food101/train-00000-of-00008.parquet", False),
        ("cifar10", "cifar100/train-00000-of-00001.parquet cats/1.png", False),
        ("cifar10", "food101/train-00000-of-00008.parquet cats/1.png", True),
        ("cifar10", "1.png", True),
        ("cifar10", "train/1.JPG", True),
        ("cifar10", "cats/1.png dogs/1.png", True),
        ("cifar10", "training/cats/1.png validation/cats/1.png", True),
        ("cifar10", "flowers/jpg/1.png", False),  # another data set's, in a folder for all
        ("cifar10", "flowers/jpg/1.png train.csv", True),
        ("cifar10", "train.txt", False),
        ("cifar10", "train/loop.py", False),
        ("cifar10", "train/nested/loop.py test/nested/test.py", False),
        ("cifar10", "README.md cifar-10-python.tar.gz images.zip .cache/1.png ._1.png", False),
        ("cifar10", "plain_text/train-00000-of-00001.parquet cats/1.png", False),  # nothing is fetched
        ("cifar10", "data/train-00000-of-00001.parquet", False),
        ("cifar10", "train-00000-of-00001.parquet", False),
        ("cifar10", "cifar-10-batches-py train/a/1.png", False),
    ],
)
def test_a_download_goes_where_no_other_images_are(
    source: str, inside: str, is_refused: bool, tmp_path: Path
) -> None:
    for name in inside.split():
        put(tmp_path / name)
    configs = [parse(DataConfig, {"source": {"kind": source, "download": True}}, "r")]
    if not is_refused:
        require_use(configs, tmp_path)
        return
    with pytest.raises(DataError, match="of which nothing would be read"):
        require_use(configs, tmp_path)


def test_the_refusal_says_how_own_images_are_given(tmp_path: Path) -> None:
    put(tmp_path / "cats" / "1.png")
    put(tmp_path / "shards" / "train-00000-of-00001.parquet")
    with pytest.raises(DataError) as found:
        require_use([parse(DataConfig, {"source": {"kind": "cifar10", "download": True}}, "r")], tmp_path)
    assert str(found.value).endswith(
        "cifar10, which is not there and would be downloaded into it: for that give another folder. It has "
        'images of its own, e.g. "cats/1.png": a recipe reads such in train/CLASS/ and val/CLASS/ with --set '
        "'data.source={kind: folder}', where train and test say other names than those two, or by lists of "
        "lines \"path label\" with --set 'data.source={kind: list, train: FILE, test: FILE}'; where a spec "
        "is taken, that is folder:DIR or list:DIR?train=FILE&test=FILE"
    )


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
    configs = [parse(DataConfig, {"source": {"kind": "cifar100", "download": True}}, "r")]
    require_use(configs, given.format(archive))


@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar-100-python"])
def test_an_archive_is_not_downloaded_into_another_ones(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    configs = [parse(DataConfig, {"source": {"kind": "cifar100", "download": True}}, "r")]
    if folder == "cifar-100-python":
        require_use(configs, tmp_path / folder)
        return
    with pytest.raises(DataError, match=r"data\.source=\{kind: cifar10\}"):
        require_use(configs, tmp_path / folder)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("recipe", [CIFAR, PACO])
@pytest.mark.parametrize(
    ("spec", "instead"),
    [
        ("folder:/my/images", "--data /my/images --set 'data.source={kind: folder}'"),
        ("folder:/my images?test=test", "--data '/my images' --set 'data.source={kind: folder, test: test}'"),
        ("digits?fraction=0.1", "--set 'data.source={kind: digits}'"),
        ("cifar10:?nonsense", None),
        ("cifar10", "--set 'data.source={kind: cifar10}'"),
        ("list", None),
    ],
)
def test_a_spec_makes_no_folder_where_a_folder_is_taken(
    recipe: str, spec: str, instead: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as found:
        open_dataset(Recipe.load(recipe).data, "train", spec)
    assert str(found.value) == (
        f'data: no folder "{spec}": that is a spec, and here only a folder is taken; one of that name is '
        f"written {shlex.quote(f'./{spec}')}"
        + (f". A recipe reads those images with {instead}" if instead else "")
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["cifar100", "./cifar10", "cifar10/", "./cifar100:new", "a:b", r"C:\data", "new"]
)
def test_other_names_are_those_of_folders_to_make(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: list[Any] = []
    monkeypatch.setattr(api, "pretrain", lambda recipe, data, **_: given.append(data))
    monkeypatch.setattr("zoo.cli.training._announce", lambda _: None)
    assert CliRunner().invoke(app, ["pretrain", CIFAR, "--data", name]).exit_code == 0
    require_use([Recipe.load(CIFAR).data, Recipe.load(PACO).data], *given)
    for text in (name, "cifar10"):
        (tmp_path / text).mkdir(exist_ok=True)
        require_use([Recipe.load(CIFAR).data], text)


def test_nothing_is_guessed_of_a_folder_with_something_else(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"leave --data out$"):
        zoo.evaluate(PACO, "knn", tmp_path)


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

    monkeypatch.setattr(work_queue, "pretrain", trained)
    monkeypatch.setattr("zoo.api.sweeps.sweep._conclude", lambda *_: None)
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
