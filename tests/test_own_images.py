"""`zoo embed` and `zoo predict`: features and classes of images of one's own."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from typer.testing import CliRunner

import zoo
from tests.data_fixtures import photo
from zoo.cli import app
from zoo.data import open_dataset, parse_data_spec
from zoo.errors import ZooError, ZooWarning
from zoo.evaluation.predict import prior_words

PACO, MOCO = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"
CE = "cifar_resnet32.ce_cifar100_lt100"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven images of several sizes, at three depths, beside what is no image."""
    folder = tmp_path / "photos"
    for number, name in enumerate(("b.png", "a.jpg", "2024/may/x.png", "2024/may/y.PNG", "2024/z.png")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        photo(9 + number, 8, number).save(folder / name)
    for hidden in (".cache/c.png", ".d.png"):
        (folder / hidden).parent.mkdir(exist_ok=True)
        photo(8, 8, 9).save(folder / hidden)
    return folder


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    folder = tmp_path / "classes"
    for name, count in (("dog", 2), ("cat", 3)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            photo(8, 8, number).save(folder / name / f"{number}.png")
    return folder


def features_of(files: list[Path], name: str = PACO) -> torch.Tensor:
    """One image at a time, as the README does it."""
    model, transform = zoo.load(name).eval(), zoo.open(name).transform()
    with torch.no_grad():
        return torch.cat([model(transform(Image.open(file))[None]) for file in files])


def test_a_folder_at_any_depth_is_embedded_by_path_and_has_no_classes(photos: Path) -> None:
    found = zoo.embed(PACO, photos)
    assert found.names == ("2024/may/x.png", "2024/may/y.PNG", "2024/z.png", "a.jpg", "b.png")
    torch.testing.assert_close(found.features, features_of([photos / name for name in found.names]))
    assert (found.labels, found.class_names, found.left_out) == (None, (), {})
    release = zoo.open(PACO)
    assert found.about["weights_sha256"] == release.config["zoo"]["weights_sha256"]
    assert (found.about["encoder"], found.about["data"], found.about["split"]) == (PACO, "photos", None)
    assert found.about["preprocess"]["input_size"] == 8
    json.dumps(found.about)


@pytest.mark.parametrize("split", [None, "test", "train"])
def test_a_spec_has_splits_and_labels(split: Any) -> None:
    found = zoo.embed(PACO, "digits?per_class=2", split=split)
    config, root = parse_data_spec("digits?per_class=2")
    expected = open_dataset(config, split or "test", root)
    assert found.labels is not None and found.labels.tolist() == expected.labels.tolist()
    assert found.names == tuple(map(expected.name_of, range(len(expected))))
    assert len(found.class_names) == 10 and len(found.features) == (20 if split == "train" else 547)


def test_any_model_embeds(photos: Path) -> None:
    model = timm.create_model("cifar_resnet20", num_classes=0)
    half = [0.5] * 3
    view = {"input_size": 16, "crop_pct": 1.0, "interpolation": "bicubic", "mean": half, "std": half}
    found = zoo.embed(model, photos, preprocess=view)
    assert found.features.shape == (5, 64) and found.about["preprocess"]["input_size"] == 16
    with pytest.raises(ZooError, match="found a classifier with 7 outputs, expected an encoder"):
        zoo.embed(timm.create_model("cifar_resnet20", num_classes=7), photos, preprocess=view)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_file_holds_features_names_and_labels(
    ending: str, labelled: bool, photos: Path, classes: Path, tmp_path: Path
) -> None:
    file = tmp_path / "new" / f"features.{ending}"
    found = zoo.embed(PACO, classes if labelled else photos, out=file)
    words = None if found.labels is None else [found.class_names[c] for c in found.labels]
    assert [each.name for each in file.parent.iterdir()] == [file.name]  # no temporary file stays
    if ending == "npz":
        with np.load(file, allow_pickle=False) as read:
            features, names, about = read["features"], read["names"].tolist(), str(read["about"])
            assert ("labels" in read) == labelled
            if labelled:
                assert read["class_names"][read["labels"]].tolist() == words
    else:
        table = pytest.importorskip("pyarrow.parquet").read_table(file)
        features, names = np.array(table["feature"].to_pylist(), dtype=np.float32), table["file"].to_pylist()
        assert table.column_names == ["file", *(["label"] if labelled else []), "feature"]
        if labelled:
            assert table["label"].to_pylist() == words
        about = table.schema.metadata[b"about"].decode()
    assert features.dtype == np.float32 and np.array_equal(features, found.features.numpy())
    assert names == list(found.names)
    assert json.loads(about) == json.loads(json.dumps(found.about))


def test_unreadable_images_are_counted_or_left_out_by_name(photos: Path) -> None:
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("[ab].*"))
    for name in names:
        (photos / name).write_bytes(b"not an image")
    with pytest.raises(ZooError) as error:
        zoo.embed(PACO, photos, max_bad_images=1)
    assert str(error.value).startswith('images: image "a.jpg" cannot be read: ')
    assert str(error.value).endswith("or leave them out: --max-bad-images 2")
    with pytest.warns(ZooWarning, match='^images: 2 of 5 cannot be read and are left out: "a.jpg", "b.png"'):
        found = zoo.embed(PACO, photos, max_bad_images=2)
    assert found.names == ("2024/may/x.png", "2024/may/y.PNG", "2024/z.png")
    assert [*found.left_out] == names
    torch.testing.assert_close(found.features, features_of([photos / name for name in found.names]))
    with pytest.warns(ZooWarning):
        found = zoo.predict(PACO, [photos / "a.jpg", photos / "2024/z.png"], max_bad_images=1)
    assert [each.image for each in found] == [str(photos / "2024/z.png")]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"data": None}, "data: found nothing, expected a folder"),
        ({"data": "digits", "split": "val"}, "split: found 'val', expected train or test"),
        ({"out": "x.npy"}, r'out: found "x.npy", expected .*\.npz'),
        ({"max_bad_images": -1}, "max_bad_images: found -1, expected 0 or more"),
        ({"workers": "2"}, "workers: found '2', expected 0 or more"),
    ],
)
def test_embedding_names_what_it_cannot_take(settings: dict[str, Any], expected: str, photos: Path) -> None:
    with pytest.raises(ZooError, match=expected):
        zoo.embed(PACO, **{"data": photos, **settings})


def test_what_cannot_be_read_or_written_is_said_before_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZooError, match=r"data: found no images in .*, expected CLASS/IMAGE"):
        zoo.embed(PACO, tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ZooError, match=r'out: ".*a.parquet" needs the package pyarrow'):
        zoo.embed(PACO, "digits", out=tmp_path / "a.parquet")
    with pytest.raises(ZooError, match="it is a folder"):
        (tmp_path / "b.npz").mkdir()
        zoo.embed(PACO, "digits", out=tmp_path / "b.npz")


def test_files_and_images_are_classified_as_one_by_one(photos: Path) -> None:
    release = zoo.open(PACO)
    grey = Image.open(photos / "b.png").convert("L")
    found = zoo.predict(release, [photos / "a.jpg", str(photos / "2024/z.png"), grey], top=3)
    files = [photos / name for name in ("a.jpg", "2024/z.png")]
    assert [each.image for each in found] == [*map(str, files), "image 2"]
    for image, (_, guessed) in zip([*map(Image.open, files), grey], found, strict=True):
        expected = release.nearest_classes(image, k=3)
        assert [name for name, _ in guessed] == [name for name, _ in expected]
        assert [p for _, p in guessed] == pytest.approx([p for _, p in expected], abs=1e-5)
    assert zoo.predict(PACO, grey)[0].classes[0] == pytest.approx(found[-1].classes[0])
    assert len(zoo.predict(PACO, grey, top=99)[0].classes) == 10


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ("absent.png", 'no folder or file "absent.png"'),
        (["absent.png"], 'image "absent.png": no such file'),
        (Image.new("F", (8, 8), 0.5), 'image "image 0" cannot be read: grey values'),
        (Image.new("RGB", (0, 5)), 'image "image 0" cannot be read: found 0 x 5 pixels'),
    ],
)
def test_predicting_names_what_it_cannot_take(images: Any, expected: str) -> None:
    with pytest.raises(ZooError, match=expected):
        zoo.predict(PACO, images)


def test_a_file_of_another_kind_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "photos.zip").touch()
    with pytest.raises(
        ZooError, match=r"found the file .*photos.zip.*expected a folder or a file of .parquet"
    ):
        zoo.embed(PACO, tmp_path / "photos.zip")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_commands_write_and_print_the_same(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("embed", PACO, "--data", photos, "--out", tmp_path / "a.npz")
    assert done.exit_code == 0, done.output
    assert f"5 images x 64 features, written to {tmp_path / 'a.npz'}\n" in done.output
    assert "embedding: 5 images\n" in done.output
    assert np.array_equal(np.load(tmp_path / "a.npz")["features"], zoo.embed(PACO, photos).features.numpy())

    expected = zoo.predict(PACO, photos, top=2)
    done = run("predict", PACO, photos, "--top", 2)
    assert done.exit_code == 0, done.output
    shown = [re.split(" {2,}", line) for line in done.stdout.splitlines() if line.startswith(str(photos))]
    rows = [(image, name, p) for image, classes in expected for name, p in classes]
    assert [tuple(row) for row in shown] == [(image, name, f"{p:.3f}") for image, name, p in rows]
    first, *_, last = done.stderr.splitlines()
    assert (first, last) == ("classifying: 5 images", prior_words(zoo.open(PACO)))
    done = run("predict", PACO, photos, "--top", 2, "--out", tmp_path / "p.csv")
    assert f"5 images, written to {tmp_path / 'p.csv'}\n" in done.output
    with (tmp_path / "p.csv").open(newline="") as stream:
        read = list(csv.DictReader(stream))
    assert [(row["file"], row["class"], float(row["probability"])) for row in read] == rows
    assert [row["rank"] for row in read] == ["1", "2"] * 5
    assert isinstance(run("predict", PACO, photos, "--out", tmp_path / "p.txt").exception, ZooError)
    formula = tmp_path / '=HYPERLINK("x").png'
    Image.open(photos / "b.png").save(formula)
    monkeypatch.chdir(tmp_path)
    assert run("predict", PACO, formula.name, "--out", "f.csv").exit_code == 0
    assert {row[0] for row in csv.reader((tmp_path / "f.csv").open())} == {"file", f"'{formula.name}"}
