"""Any data: each kind gives the same images, features and accuracies as the same images in a folder."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import zoo
from tests.data_fixtures import put
from zoo.config import parse
from zoo.data import DataConfig, open_dataset
from zoo.data.any_data import all_as_test, as_data, open_images, resolve
from zoo.data.config import Folder, Holdout, Parquet
from zoo.data.sources import image_files
from zoo.errors import DataError, TrainingError, ZooError, ZooWarning

PACO, CE = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.ce_digits_lt50"
CIFAR = "cifar_resnet32.paco_cifar100_lt100"  # its recipe may download
SHORT = {"training.epochs": 1, "training.batch_size": 16, "training.device": "cpu", "training.threads": 1}
IMAGE = np.zeros((8, 8, 3), dtype=np.uint8)

hub = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty digits, `CLASS/IMAGE`; of the class 9 a single one."""
    from sklearn.datasets import load_digits

    found, root = load_digits(), tmp_path_factory.mktemp("any") / "digits"
    for row in [*[row for row in range(70) if found.target[row] != 9][:59], 9]:
        file = root / str(found.target[row]) / f"{row:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.rint(found.images[row] * 255 / 16).astype(np.uint8)).save(file)
    return ImageFolder(str(root))


def hugging_face(folder):
    features = hub.Features({"picture": hub.Image(), "kind": hub.ClassLabel(names=folder.classes)})
    images = [{"bytes": Path(file).read_bytes(), "path": None} for file, _ in folder.samples]
    return hub.Dataset.from_dict({"picture": images, "kind": folder.targets}, features=features)


def parquet(folder):
    file = Path(folder.root).parent / "parquet" / "train.parquet"
    file.parent.mkdir(exist_ok=True)
    hugging_face(folder).to_parquet(str(file))
    return file


def csv_list(folder):
    file = Path(folder.root).parent / "list.csv"
    rows = [f"{Path(image).relative_to(file.parent)},{folder.classes[c]}" for image, c in folder.samples]
    file.write_text("path,label\n" + "\n".join(rows))
    return file


def arrays(folder):
    return [(np.asarray(Image.open(file)), folder.classes[c]) for file, c in folder.samples]


def tensors(folder):
    pixels = np.stack([pixels for pixels, _ in arrays(folder)])
    return TensorDataset(torch.from_numpy(pixels)[:, None], torch.tensor(folder.targets))


KINDS = {
    "spec": lambda folder: f"folder:{folder.root}",
    "below home": lambda folder: f"~/{os.path.relpath(folder.root, Path.home())}",
    "csv file": csv_list,
    "parquet folder": lambda folder: parquet(folder).parent,
    "parquet file": parquet,
    "hugging face": lambda folder: hub.DatasetDict({"train": hugging_face(folder)}),
    "subset": lambda folder: Subset(Subset(folder, range(60)), range(60)),
    "to tensor": lambda folder: ImageFolder(folder.root, transform=transforms.ToTensor()),
    "tensors": tensors,
    "pairs of paths": lambda folder: [(file, folder.classes[c]) for file, c in folder.samples],
    "pairs of images": lambda folder: [(Image.open(file), c) for file, c in folder.samples],
    "pairs of arrays": arrays,
}


def read(data):
    """Return what data are read as, as values that can be compared."""
    given = as_data(data)
    sets = [open_dataset(given.config, split, given.root) for split in ("train", "test")]
    pixels = [[np.asarray(each.image(row)).tobytes() for row in range(len(each))] for each in sets]
    return given.config.holdout, pixels, [[each.class_names[c] for c in each.labels] for each in sets]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_what_the_folder_gives(kind, folder):
    assert read(KINDS[kind](folder)) == read(folder.root)


@pytest.mark.usefixtures("no_pictures")
def test_a_training_on_images_in_python_is_that_on_the_folder(folder, tmp_path):
    made = [
        zoo.finetune(init=PACO, data=data, out=tmp_path / name, overrides=SHORT)
        for name, data in (("folder", folder.root), ("python", arrays(folder)))
    ]
    hashes = [each.config["zoo"]["weights_sha256"] for each in made]
    metrics = [each.metrics["evaluations"][0]["metrics"] for each in made]
    assert hashes[0] == hashes[1] and metrics[0] == metrics[1]
    again = zoo.evaluate(made[1], "classifier", arrays(folder), save=False)
    assert again["metrics"] == metrics[1], "the same images are the release's own, of which a fifth is tested"


def test_a_fifth_of_each_class_is_held_out_and_never_trained_on(folder):
    config, root, _ = as_data(folder.root)
    assert config.holdout == Holdout(fraction=0.2, seed=0)
    train, test = (open_dataset(config, split, root) for split in ("train", "test"))
    names = [{each.name_of(row) for row in range(len(each))} for each in (train, test)]
    assert not names[0] & names[1] and len(names[0] | names[1]) == 60
    assert train.class_counts[9] == 1 and test.class_counts[9] == 0
    assert (test.class_counts[:9] >= 1).all()
    files = [Path(folder.root, name) for each in names for name in each]
    listed = as_data([(file, str(file.parent)) for file in files + files[:9]])
    parts = [open_dataset(listed.config, split, listed.root) for split in ("train", "test")]
    assert sorted(map(len, parts)) == sorted(map(len, (train, test))), (
        "an image that is there twice counts once"
    )


@pytest.mark.parametrize("test", ["val", "test"])
def test_parts_are_found_by_their_names(test, folder, tmp_path):
    data = hugging_face(folder)
    for part in ("train", test):
        (tmp_path / part).symlink_to(folder.root, target_is_directory=True)
        data.to_parquet(str(tmp_path / "shards" / part / "0000.parquet"))
    parts = hub.DatasetDict({"train": data, test: data.select(range(7))})
    for given, count in ((tmp_path, 60), (parts, 7), (tmp_path / "shards", 60)):
        config, root, _ = as_data(given)
        assert config.holdout is None and len(open_dataset(config, "test", root)) == count


def test_numbers_of_a_test_part_are_read_by_its_own_class_names(folder, tmp_path):
    train = hugging_face(folder)
    names = folder.classes[::-1]
    kind = hub.Features({**train.features, "kind": hub.ClassLabel(names=names)})
    other = [{**row, "kind": names.index(folder.classes[row["kind"]])} for row in train.with_format(None)]
    test = hub.Dataset.from_list(other, features=kind)
    for part, data in (("train", train), ("test", test)):
        data.to_parquet(str(tmp_path / part / "0000.parquet"))
    for given in ({"train": train, "test": test}, tmp_path):
        found, *_, labels = read(given)
        assert found is None and labels[0] == labels[1] == [folder.classes[c] for c in folder.targets]
    unknown = test.cast_column("kind", hub.ClassLabel(names=["x", *names[1:]]))
    with pytest.raises(DataError, match=r"found label .x., expected one of 0, 1"):
        read({"train": train, "test": unknown})


class Parity(ImageFolder):
    """Items have other labels than the lists that it inherits."""

    def __getitem__(self, row):
        image, label = super().__getitem__(row)
        return image, label % 2


@pytest.fixture
def words(folder, tmp_path):
    """The same folder, its classes called by words whose order is another."""
    names = {name: f"{int(name) * 7 % 10}th" for name in folder.classes}
    (tmp_path / "words").mkdir()
    for name, word in names.items():
        (tmp_path / "words" / word).symlink_to(Path(folder.root, name), target_is_directory=True)
    return ImageFolder(str(tmp_path / "words"))


def test_a_torchvision_data_set_tells_classes_without_an_image_decoded(words):
    loaded = []
    words.loader = lambda path: (loaded.append(path), Image.open(path).convert("RGB"))[1]
    assert classes(words) == (words.targets, tuple(words.classes))
    assert len(loaded) <= 61, "of 60 images the first tells the kind, and all are hashed"
    assert classes(Subset(words, range(60))) == (words.targets, tuple(words.classes))


def test_lists_of_a_torchvision_data_set_are_believed_only_of_its_own_items(words):
    parity, short = Parity(words.root), ImageFolder(words.root)
    expected = [c % 2 for c in words.targets]
    assert classes(parity) == classes(Subset(parity, range(60))) == (expected, ("0", "1"))
    wrapped = [parity[row] for row in range(60)]
    assert classes(wrapped) == (expected, ("0", "1"))
    short.targets = short.targets[:9]
    assert classes(short) == (words.targets, tuple(words.classes))


def test_labels_of_one_part_are_told_by_the_names_of_the_other():
    features = hub.Features({"img": hub.Image(), "label": hub.ClassLabel(names=["cat", "ape"])})
    images = [Image.fromarray(IMAGE)] * 3
    named = hub.Dataset.from_dict({"img": images, "label": [0, 1, 0]}, features=features)
    listed = [(IMAGE.copy(), word) for word in ("ape", "cat", "ape")]
    told = ["cat", "ape", "cat"], ["ape", "cat", "ape"]
    assert read({"train": named, "test": listed})[2] == [*told]
    assert read({"train": listed, "test": named})[2] == [*told[::-1]]
    with pytest.warns(ZooWarning, match="labels without names are taken as cat, ape"):
        found = read({"train": named, "test": [(IMAGE.copy(), number) for number in (1, 0, 1)]})
    assert found[2] == [*told]
    assert classes(Subset(named, [1, 0])) == ([1, 0], ("cat", "ape"))
    unknown = named.map(lambda row: {"label": -1})
    assert open_images(unknown)[0].labels.tolist() == [-1, -1, -1]


@pytest.mark.usefixtures("no_pictures")
def test_images_without_labels_have_features_and_can_be_learned_from(folder, tmp_path):
    files = [file for file, _ in folder.samples]
    features = zoo.embed(PACO, folder.root).features
    for images in (files, [np.asarray(Image.open(file)) for file in files]):
        found = zoo.embed(PACO, images)
        assert torch.equal(found.features, features) and found.labels is None
    with pytest.raises(ZooError, match=r"have no labels"):
        zoo.finetune(init=PACO, data=files, out=tmp_path / "out", overrides=SHORT)
    changes = {**SHORT, "objective.head_hidden": 16}
    made = zoo.pretrain(arch="cifar_resnet20", data=files, out=tmp_path / "made", overrides=changes)
    assert made.class_names == () and made.recipe["data"]["source"]["kind"] == "memory"


def test_other_pixels_are_other_data(folder):
    data = arrays(folder)
    first, again = as_data(data), as_data(data)
    data[7] = (data[7][0] + np.uint8(1), data[7][1])
    changed = as_data(data)
    assert first.config == again.config != changed.config
    hashes = [open_dataset(each.config, "train", each.root).describe()["sha256"] for each in (first, changed)]
    assert hashes[0] != hashes[1]


def classes(data):
    config, root, _ = as_data(data)
    found = open_dataset(config.model_copy(update={"holdout": None}), "train", root)
    return found.labels.tolist(), found.class_names


def test_text_stays_text_and_numbers_are_named_by_their_range():
    assert classes([(IMAGE, "1"), (IMAGE.copy(), "01")]) == ([1, 0], ("01", "1"))
    assert classes([(IMAGE, torch.tensor(1)), (IMAGE.copy(), 0.0)]) == ([1, 0], ("0", "1"))


@pytest.mark.parametrize("label", [-2, 0.5, None, "cat", 10**12])
def test_a_label_that_is_no_class_is_one_line(label):
    with pytest.raises(DataError, match=rf'"image 1": found label .{label}[^\n]*$'):
        classes([(IMAGE, 0), (IMAGE, label)])


def two_columns(folder):
    data = hugging_face(folder).add_column("coarse", [0] * 60)
    return data.cast_column("coarse", hub.ClassLabel(names=["a"]))


def normalised(folder):
    steps = [transforms.ToTensor(), transforms.Normalize(0.5, 0.5)]
    return ImageFolder(folder.root, transforms.Compose(steps))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (normalised, r"floats in -1\.\.\d.*, expected 0\.\.1, before Norm"),
        (two_columns, "found the columns picture, kind, coarse"),
        (lambda folder: [(IMAGE, 0), IMAGE], "found images with and without a label"),
        (lambda folder: [(IMAGE, 0), (IMAGE, 1)], '"image 1": found label .1., expected .0. as before'),
        (lambda folder: [("a", 0), ("./a", 1)], r'"./a": found label .1., expected .0. as before'),
        (lambda folder: "", 'found "", expected a folder, file or spec'),
        (lambda folder: [IMAGE.astype(np.float64)], r"found float64 of \[8, 8, 3\], expected a PIL image"),
        (lambda folder: torch.utils.data.DataLoader([1]), "data: found a DataLoader, expected a folder"),
        (lambda folder: [], "found no images"),
        (lambda folder: torch.rand(3, 8, 8), "found a Tensor"),
        (lambda folder: [{"image": IMAGE, "label": 0}], "found a dict, expected a PIL image"),
    ],
)
def test_what_is_no_data_is_one_line(data, expected, folder):
    with pytest.raises(DataError, match=rf"^[^\n]*{expected}[^\n]*$"):
        zoo.embed(PACO, data(folder))


USES = [
    lambda data, out: zoo.embed(CIFAR, data),
    lambda data, out: zoo.evaluate(CIFAR, "knn", data, save=False),
    lambda data, out: zoo.predict(CIFAR, data),
    lambda data, out: zoo.pretrain(CIFAR, out=out, data=data),
    lambda data, out: zoo.finetune(init=CIFAR, out=out, data=data),
    lambda data, out: zoo.compare(None, init=CIFAR, out=out, data=data),
    lambda data, out: zoo.sweep(CIFAR, out=out, data=data, vary={"optimizer.lr": [0.1]}),
    lambda data, out: zoo.diagnose(CIFAR, out=out, data=data),
    lambda data, out: zoo.reproduce(CIFAR, out=out, data=data),
]


@pytest.mark.parametrize("use", USES)
def test_a_folder_that_is_not_there_is_one_line_and_is_not_made(use, tmp_path):
    for place in (str(tmp_path / "nowhere"), f"cifar100:{tmp_path / 'nowhere'}"):
        with pytest.raises(ZooError, match=r"^[^\n]*no folder[^\n]*$"):
            use(place, tmp_path / "out")
    with pytest.raises(DataError, match=r"^[^\n]*found a ndarray"):
        use(IMAGE, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


def test_other_images_are_refused_where_a_recipes_own_are_meant(tmp_path):
    put(tmp_path / "photos", "ant/1.png", "bee/1.png")
    given = {"out": tmp_path / "out", "data": tmp_path / "photos"}
    for use in (
        lambda: zoo.reproduce(PACO, **given),
        lambda: zoo.sweep(CE, PACO, **given, vary={"optimizer.lr": [0.1]}),
    ):
        with pytest.raises(DataError, match=r"found .*photos., expected the recipe's own: "):
            use()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("source", "inside", "kind"),
    [
        ("cifar100", "train/a/1.png val/a/1.png", "folder"),
        ("cifar10", "1.png", "folder"),
        ("digits", "train/a/1.png", "folder"),
        # the own data, or a place to download them to
        ("cifar100", "cifar-10-batches-py", None),  # torchvision's archives share a folder
        ("cifar10", "README.md cifar-10-python.tar.gz images.zip .cache/1.png ._1.png", None),
        ("cifar10", "plain_text/train-00000-of-00001.parquet cats/1.png", None),
        ("folder", "train/a/1.png", None),
    ],
)
def test_a_folder_is_other_data_where_the_own_do_not_lie_in_it(source, inside, kind, tmp_path):
    for path in map(tmp_path.joinpath, inside.split()):  # a folder, where the name has no ending
        (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
        path.touch()
    section = {"kind": source, **({"download": True} if source.startswith("cifar") else {})}
    given = resolve(tmp_path, parse(DataConfig, {"source": section}, "r"))
    assert given.is_own == (kind is None) and given.root == tmp_path
    assert given.config.source.kind == (kind or source)


def test_a_class_may_be_called_train(tmp_path):
    put(tmp_path, "train/1.png", "plane/1.png")
    assert classes(tmp_path) == ([0, 1], ("plane", "train"))


def test_a_table_beside_images_does_not_hide_them(tmp_path):
    put(tmp_path, "cat/0.png", "dog/0.png", "features.parquet")
    assert as_data(tmp_path).config.source == Folder(train=".")
    assert classes(tmp_path) == ([0, 1], ("cat", "dog"))
    put(tmp_path / "tables", "part-0.parquet", "figures/a.png", "figures/b.png", "logo.png")
    assert as_data(tmp_path / "tables").config.source == Parquet(train="*.parquet"), "nor pictures a table"


def test_a_third_folder_of_images_beside_train_and_val_is_no_class(tmp_path):
    put(tmp_path, "train/a/1.png", "val/a/2.png", "masks/1.png", "logo.png")
    with pytest.warns(ZooWarning, match="masks"):
        assert as_data(tmp_path).config == DataConfig(source=Folder())
    (tmp_path / "masks" / "1.png").unlink()
    put(tmp_path / "val" / "a", "3.png")
    put(tmp_path / "val", "sheet.png")
    with pytest.raises(DataError, match="images of the test split have no labels"):
        open_dataset(as_data(tmp_path).config, "test", tmp_path)
    put(tmp_path / "kaggle", "train/a/1.png", "train/a/2.png", "test/3.png")
    with pytest.warns(ZooWarning, match="the images in test are not used"):
        config, root, _ = as_data(tmp_path / "kaggle")
    assert [len(open_dataset(config, split, root)) for split in ("train", "test")] == [1, 1]


def test_what_is_left_out_is_named(tmp_path):
    put(
        tmp_path, "train/a/1.png", "train/a/@eaDir/1.png", "train/@eaDir/x.png", "val/a/2.png", "test/a/3.png"
    )
    with pytest.warns(ZooWarning, match="images in test are not used, only those in train, val"):
        config, root, _ = as_data(tmp_path)
    assert open_dataset(config, "train", root).class_names == ("a",)
    images = [(IMAGE, "a"), (IMAGE.copy(), "b")]
    with pytest.warns(ZooWarning, match="val is the test split, test not used"):
        as_data({"train": images, "val": images, "test": images})
    (tmp_path / "val" / "a" / "5.HEIC").write_bytes(b"")
    with pytest.warns(ZooWarning, match=r"\.HEIC files are left out"):
        assert len(open_dataset(config, "test", root)) == 1
    with pytest.raises(DataError, match="no class has two"):
        open_dataset(as_data(images).config, "test", as_data(images).root)
    put(tmp_path, "train/a/4.jfif")
    assert len(open_dataset(config, "train", root)) == 2
    outside = DataConfig(source=Folder(train=str(tmp_path / "train")))
    with pytest.raises(DataError, match=r"data\.source\.train: found .* inside --data DIR"):
        open_dataset(outside, "train", tmp_path)


def test_labels_that_are_lists_or_missing_are_named():
    images = [Image.fromarray(IMAGE)] * 2
    with pytest.raises(DataError, match="found the columns img, label"):
        as_data(
            hub.Dataset.from_dict({"img": images, "label": [[0, 1], [1]]}).cast_column("img", hub.Image())
        )
    with pytest.raises(DataError, match="found label 'None'"):
        as_data([(images[0], "cat"), (images[1], None)])


def test_no_image_beside_class_folders_is_left_out(tmp_path):
    put(tmp_path, "1.png", "2.png", "a/3.png")
    config, root, _ = as_data(tmp_path)
    assert len(open_dataset(all_as_test(config), "test", root, unlabelled=True)) == 3
    with pytest.raises(DataError, match=r"have no labels, expected CLASS/IMAGE alone"):
        open_dataset(config, "train", root)


def test_a_link_to_a_folder_around_it_is_not_followed(tmp_path):
    put(tmp_path, "a/1.png", "b/2.png", "ab/3.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "b" / "more").symlink_to(tmp_path / "ab", target_is_directory=True)
    assert image_files(tmp_path) == ["a/1.png", "ab/3.png", "b/2.png", "b/more/3.png"]
    assert image_files(tmp_path / "a") == ["1.png"]  # nor one above the folder that is read
    (tmp_path / "ab" / "back").symlink_to(tmp_path / "b", target_is_directory=True)  # to one another
    assert image_files(tmp_path / "b") == ["2.png", "more/3.png"]


def test_images_beside_the_parts_are_named_and_a_release_among_the_images_is_refused(tmp_path):
    put(tmp_path, "train/a/1.png", "train/b/2.png", "holdout/a/3.png", "car/4.png", "runs/x/5.png")
    with pytest.warns(ZooWarning, match=r"images in car, holdout are not used, only those in train$"):
        as_data(tmp_path)
    put(tmp_path / "flat", "a/1.png", "a/2.png", "b/3.png", "b/4.png")
    with pytest.raises(TrainingError, match=r"where its pictures would be training images"):
        zoo.pretrain(CE, data=tmp_path / "flat", out=tmp_path / "flat" / "runs" / "x")
    assert not (tmp_path / "flat" / "runs").exists()


def test_an_unreadable_test_image_can_be_replaced_after_the_training(folder, tmp_path):
    for file in Path(folder.root).rglob("*.png"):
        target = tmp_path / "photos" / file.relative_to(folder.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    config, root, _ = as_data(tmp_path / "photos")
    held = root / open_dataset(config, "test", root).name_of(0)
    whole = held.read_bytes()
    held.write_bytes(whole[:40])
    changes = SHORT | {"schedule.warmup_epochs": 0, "training.drop_last": True}
    given = {"data": tmp_path / "photos", "out": tmp_path / "out", "overrides": changes}
    with pytest.raises(DataError, match=r"cannot be read: .*; training is done: replace"):
        zoo.pretrain(CE, **given)
    held.write_bytes(whole)
    assert zoo.pretrain(CE, **given, resume=True).metrics["evaluations"]
