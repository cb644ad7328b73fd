"""`zoo embed` and `zoo predict`: features and classes of images of one's own."""

import csv
import json
import re
import sys

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

PACO = "cifar_resnet20.paco_digits_lt50"


@pytest.fixture
def photos(tmp_path):
    """Five images of several sizes, at three depths, beside what is hidden."""
    folder = tmp_path / "photos"
    names = ("b.png", "a.jpg", "2024/may/x.png", "2024/may/y.PNG", "2024/z.png", ".cache/c.png", ".d.png")
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        photo(9 + number, 8, number).save(folder / name)
    return folder


def features_of(files):
    """One image at a time, as the README does it."""
    model, transform = zoo.load(PACO).eval(), zoo.open(PACO).transform()
    with torch.no_grad():
        return torch.cat([model(transform(Image.open(file))[None]) for file in files])


def test_a_folder_at_any_depth_is_embedded_by_path_and_has_no_classes(photos):
    found = zoo.embed(PACO, photos)
    assert found.names == ("2024/may/x.png", "2024/may/y.PNG", "2024/z.png", "a.jpg", "b.png")
    torch.testing.assert_close(found.features, features_of([photos / name for name in found.names]))
    assert (found.labels, found.class_names, found.left_out) == (None, (), {})
    assert found.about["weights_sha256"] == zoo.open(PACO).config["zoo"]["weights_sha256"]
    assert (found.about["encoder"], found.about["data"], found.about["split"]) == (PACO, "photos", None)


@pytest.mark.parametrize("split", [None, "train"])
def test_a_spec_has_splits_and_labels(split):
    found = zoo.embed(PACO, "digits?per_class=2", split=split)
    config, root = parse_data_spec("digits?per_class=2")
    expected = open_dataset(config, split or "test", root)
    assert found.labels.tolist() == expected.labels.tolist() and len(found.class_names) == 10
    assert found.names == tuple(map(expected.name_of, range(len(expected))))


def test_any_model_embeds(photos):
    half = [0.5] * 3
    view = {"input_size": 16, "crop_pct": 1.0, "interpolation": "bicubic", "mean": half, "std": half}
    found = zoo.embed(timm.create_model("cifar_resnet20", num_classes=0), photos, preprocess=view)
    assert found.features.shape == (5, 64) and found.about["preprocess"]["input_size"] == 16
    with pytest.raises(ZooError, match="found a classifier with 7 outputs, expected an encoder"):
        zoo.embed(timm.create_model("cifar_resnet20", num_classes=7), photos, preprocess=view)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_file_holds_features_names_and_labels(ending, labelled, photos, tmp_path):
    file = tmp_path / "new" / f"features.{ending}"
    found = zoo.embed(PACO, photos / "2024" if labelled else photos, out=file)
    if labelled:
        (photos / "2024" / "z.png").rename(photos / "2024" / "may" / "z.png")
        found = zoo.embed(PACO, photos / "2024", out=file)
    words = None if found.labels is None else [found.class_names[c] for c in found.labels]
    assert [each.name for each in file.parent.iterdir()] == [file.name]  # no temporary file stays
    if ending == "npz":
        with np.load(file, allow_pickle=False) as read:
            features, names, about = read["features"], read["names"].tolist(), str(read["about"])
            found_words = read["class_names"][read["labels"]].tolist() if "labels" in read else None
    else:
        table = pytest.importorskip("pyarrow.parquet").read_table(file)
        features, names = np.array(table["feature"].to_pylist(), dtype=np.float32), table["file"].to_pylist()
        found_words = table["label"].to_pylist() if "label" in table.column_names else None
        about = table.schema.metadata[b"about"].decode()
    assert found_words == words == (["may"] * 3 if labelled else None)
    assert features.dtype == np.float32 and np.array_equal(features, found.features.numpy())
    assert names == list(found.names)
    assert json.loads(about) == json.loads(json.dumps(found.about))


def test_unreadable_images_are_counted_or_left_out_by_name(photos):
    for name in ("a.jpg", "b.png"):
        (photos / name).write_bytes(b"not an image")
    with pytest.raises(ZooError, match=r'^images: image "a.jpg" cannot be read: .*--max-bad-images 2$'):
        zoo.embed(PACO, photos, max_bad_images=1)
    with pytest.warns(ZooWarning, match='^images: 2 of 5 cannot be read and are left out: "a.jpg", "b.png"'):
        found = zoo.embed(PACO, photos, max_bad_images=2)
    assert found.names == ("2024/may/x.png", "2024/may/y.PNG", "2024/z.png")
    assert [*found.left_out] == ["a.jpg", "b.png"]
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
        ({"data": "{tmp}"}, r"data: found no images in .*, expected .train/.CLASS/IMAGE"),
        ({"data": "{tmp}/x.zip"}, r"found the file .*x.zip.*expected a folder or a file of .parquet"),
        ({"out": "{tmp}/a.parquet"}, r'out: ".*a.parquet" needs the package pyarrow'),
        ({"out": "{tmp}/b.npz"}, "it is a folder"),
    ],
)
def test_embedding_names_what_it_cannot_take(settings, expected, tmp_path, monkeypatch):
    (tmp_path / "x.zip").touch()
    (tmp_path / "b.npz").mkdir()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    given = {
        key: value.format(tmp=tmp_path) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    with pytest.raises(ZooError, match=expected):
        zoo.embed(PACO, **{"data": "digits", **given})


def test_files_and_images_are_classified_as_one_by_one(photos):
    release, files = zoo.open(PACO), [photos / name for name in ("a.jpg", "2024/z.png")]
    grey = Image.open(photos / "b.png").convert("L")
    found = zoo.predict(release, [files[0], str(files[1]), grey], top=3)
    assert [each.image for each in found] == [*map(str, files), "image 2"]
    for image, (_, guessed) in zip([*map(Image.open, files), grey], found, strict=True):
        expected = release.nearest_classes(image, k=3)
        assert [name for name, _ in guessed] == [name for name, _ in expected]
        assert [p for _, p in guessed] == pytest.approx([p for _, p in expected], abs=1e-5)
    assert len(zoo.predict(PACO, grey, top=99)[0].classes) == 10
    (photos / "list.csv").write_text("file,kind\na.jpg,x\n")
    assert [each.image for each in zoo.predict(PACO, photos / "list.csv")] == [str(files[0])]


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        ("absent.png", 'no folder or file "absent.png"'),
        (["absent.png"], 'image "absent.png": no such file'),
        (Image.new("F", (8, 8), 0.5), 'image "image 0" cannot be read: grey values'),
        (Image.new("RGB", (0, 5)), 'image "image 0" cannot be read: found 0 x 5 pixels'),
    ],
)
def test_predicting_names_what_it_cannot_take(images, expected):
    with pytest.raises(ZooError, match=expected):
        zoo.predict(PACO, images)


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_commands_write_and_print_the_same(photos, tmp_path, monkeypatch):
    done = run("embed", PACO, "--data", photos, "--out", tmp_path / "a.npz")
    assert f"5 images x 64 features, written to {tmp_path / 'a.npz'}\n" in done.output
    assert np.array_equal(np.load(tmp_path / "a.npz")["features"], zoo.embed(PACO, photos).features.numpy())
    rows = [(image, *pair) for image, classes in zoo.predict(PACO, photos, top=2) for pair in classes]
    done = run("predict", PACO, photos, "--top", 2, "--out", tmp_path / "p.csv")
    assert done.exit_code == 0, done.output
    with (tmp_path / "p.csv").open(newline="") as stream:
        read = list(csv.DictReader(stream))
    assert [(row["file"], row["class"], float(row["probability"])) for row in read] == rows
    done = run("predict", PACO, photos, "--top", 2)
    shown = [re.split(" {2,}", line) for line in done.stdout.splitlines() if line.startswith(str(photos))]
    assert [tuple(row) for row in shown] == [(image, name, f"{p:.3f}") for image, name, p in rows]
    assert isinstance(run("predict", PACO, photos, "--out", tmp_path / "p.txt").exception, ZooError)
    (photos / "b.png").rename(tmp_path / '=HYPERLINK("x").png')  # a spreadsheet would run it
    monkeypatch.chdir(tmp_path)
    assert run("predict", PACO, '=HYPERLINK("x").png', "--out", "f.csv").exit_code == 0
    assert {row[0] for row in csv.reader((tmp_path / "f.csv").open())} == {"file", '\'=HYPERLINK("x").png'}
