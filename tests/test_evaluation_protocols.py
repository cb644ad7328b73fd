"""`zoo.evaluate` repeats what a release records, keeps entries apart, and refuses other data in one line."""

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

import zoo
from tests.data_fixtures import opened, shard
from tests.evaluation_helpers import folders
from zoo.data import open_dataset
from zoo.errors import ZooError, ZooWarning
from zoo.evaluation.encode import Encoder
from zoo.evaluation.evaluate import own_data
from zoo.experiments.records import from_release
from zoo.recipe import Recipe
from zoo.recipe.protocols import PROTOCOLS
from zoo.release.card import check_card

PACO = "cifar_resnet20.paco_digits_lt50"


def test_recorded_settings_are_defaults_on_own_data_alone_and_each_can_be_changed(copied: Path) -> None:
    count = len(zoo.open(copied).metrics["evaluations"])
    assert zoo.evaluate(copied, "knn")["settings"] == {"k": 5, "tau": 0.07}
    assert zoo.evaluate(copied, "knn", save=False, tau=0.1)["settings"] == {"k": 5, "tau": 0.1}
    assert zoo.evaluate(copied, "knn", "digits", save=False)["settings"]["k"] == 20
    zoo.evaluate(copied, "few_shot", shots=2, seed=3)
    again = zoo.evaluate(copied, "few_shot")  # no protocol of the recipe: as its entry has it
    assert (again["settings"]["shots"], again["seed"]) == (2, 3)
    assert len(zoo.open(copied).metrics["evaluations"]) == count + 1
    zoo.evaluate(copied, "knn", k=50)
    repeated = [zoo.evaluate(copied, "knn")["settings"]["k"] for _ in range(3)]
    assert repeated == [5, 5, 5], "the first of several counts, however often it is repeated"


def test_other_images_of_the_same_names_are_other_data(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    places = [tmp_path / name / "photos" for name in ("own", "other")]
    for place in places:
        for split, count in (("train", 6), ("val", 3)):
            for number, name in enumerate("abc"):
                (place / split / name).mkdir(parents=True)
                for i in range(count):
                    pixels = generator.integers(60 * number, 60 * number + 90, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(place / split / name / f"{i}.png")
    changes = ["training.epochs=2", "training.batch_size=6"]
    tuned = zoo.finetune(init=PACO, data=places[0], out=tmp_path / "tuned", overrides=changes)
    zoo.evaluate(tuned, "knn", places[0], k=3)
    own, other = (zoo.evaluate(tuned, "knn", place) for place in places)
    assert (own["own"], own["settings"]["k"], other["own"], other["settings"]["k"]) == (True, 3, False, 20)
    assert own["data"] == other["data"] and own["train_set"]["sha256"] != other["train_set"]["sha256"]
    record = from_release(zoo.open(tuned.path))
    assert [each.settings.get("k") for each in record.evaluations if each.protocol == "knn"] == [3]
    check_card(tuned.path, zoo.open(tuned.path).config)


def test_several_protocols_encode_each_image_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where no other test has left features
    encoded, batches = list[int](), Encoder.batches
    monkeypatch.setattr(Encoder, "batches", lambda *args: encoded.append(len(args[1])) or batches(*args))
    entries = zoo.evaluate(PACO, ["classifier", "knn"])
    recorded = {entry["protocol"]: entry["value"] for entry in zoo.open(PACO).metrics["evaluations"]}
    assert all(entry["value"] == recorded[name] for name, entry in entries.items())
    assert encoded == [547, 344]


def test_entries_are_complete_and_those_of_other_settings_stand_side_by_side(copied: Path) -> None:
    before = zoo.open(copied).metrics["evaluations"]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("few_shot", {"shots": 1}),
        ("few_shot", {"shots": 2, "seed": 1}),
        ("retrieval", {"gallery": "train"}),
        ("retrieval", {"k": [1, 16], "gallery": "test"}),
        ("linear", {"l2_grid": [1e-2]}),
    ]
    entries = [zoo.evaluate(copied, protocol, **settings) for protocol, settings in asked]
    zoo.evaluate(copied, "few_shot", shots=2, seed=1, classifier="linear")  # again: in place of the first
    found = zoo.open(copied).metrics["evaluations"]
    assert len(found) == len(before) + len(asked)
    for entry in entries:
        metric = "recall_at_1" if entry["protocol"] == "retrieval" else "accuracy"
        assert (entry["metric"], entry["value"]) == (metric, entry["metrics"][metric])
        assert entry["split"] == "test" and datetime.fromisoformat(entry["date"]).tzinfo is not None
        seeded = "seed" in PROTOCOLS[entry["protocol"]].model_fields
        assert isinstance(entry["seed"], int) if seeded else entry["seed"] is None
    assert 0 < entries[-1]["metrics"]["calibration_error"] < 100
    zoo.evaluate(copied, "retrieval", "digits", k=[3])
    own = zoo.evaluate(copied, "retrieval", save=False)
    assert own["settings"] == entries[2]["settings"], "not those that were given for other data"
    card, few = zoo.open(copied).card, entries[0]["metrics"]
    assert f"| {few['accuracy']:.2f} ± {few['accuracy_interval']:.2f} |" in card
    check_card(copied, zoo.open(copied).config)


@pytest.mark.parametrize(
    ("protocol", "counts", "expected"),
    [
        ("linear", {"a": (1, 2), "b": (1, 2)}, "a single training image, so none can validate"),
        ("linear", {"a": (3, 2)}, "found images of 1 class, expected two or more"),
        ("few_shot", {"a": (9, 2), "b": (3, 2)}, 'class "b" has 3; expected 5 training images'),
        ("classifier", {"a": (3, 2), "b": (3, 2)}, 'found 2 classes (a, b), of which "a" is unknown'),
        ("retrieval", {"a": (3, 1), "b": (3, 1)}, "no query has another image of its class"),
        ("retrieval", {"a": (3, 2), "b": (3, 0)}, "found images of 1 class, expected two or more"),
        ("knn", {"a": (2, 2), "b": (2, 2), "extra": (0, 2)}, "extra"),
    ],
)
def test_data_that_cannot_be_measured_on_are_one_line(protocol, counts, expected, made, tmp_path) -> None:
    data = folders(tmp_path, **counts)
    with pytest.raises(ZooError) as error:
        zoo.evaluate(made, protocol, data, save=False)
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_labelled_batch_of_some_classes_needs_no_training_images(made, tmp_path) -> None:
    data = folders(tmp_path / "data", **{"class 3": (2, 3), "class 1": (2, 2)})
    whole = zoo.evaluate(made, "classifier", data, save=False)
    shutil.rmtree(tmp_path / "data" / "train")
    entry = zoo.evaluate(made, "classifier", data, save=False)
    assert entry["metrics"] == whole["metrics"]
    assert [value is not None for value in entry["metrics"]["per_class"]] == [False, True, False, True, False]
    assert entry["train_set"] is None and entry["test_set"] == whole["test_set"]
    assert entry["chosen"] == {"train_counts": "of the centers"}
    assert entry["classes_measured"] == whole["classes_measured"] == 2
    copy = zoo.open(Path(shutil.copytree(made.path, tmp_path / "copy")))
    copy.add_evaluation(entry)
    check_card(copy.path, copy.config)
    assert "no training images were at hand" in copy.card
    assert zoo.evaluate(made, "retrieval", data, save=False)["metrics"]["test_images"] == 5
    with pytest.raises(ZooError, match="no train folder"):
        zoo.evaluate(made, "knn", data, save=False)


def test_a_classifier_less_the_log_prior() -> None:
    release, tau = zoo.open(PACO), 1.0
    data = open_dataset(Recipe.load(release.path / "recipe.yaml").data, "test", None)
    transform = release.transform()
    images = torch.stack([transform(data.image(row)) for row in range(len(data))])
    with torch.no_grad():
        logits = release.load(head="centers").eval()(images).double()
    counts = release.centers.class_counts.double()
    predicted = (logits - tau * (counts / counts.sum()).log()).argmax(1)
    with pytest.warns(UserWarning, match="'s loss already removed the log prior; tau does so again"):
        entry = zoo.evaluate(release, "classifier", tau=tau)
    expected = 100 * (predicted.numpy() == data.labels).mean()
    assert entry["metrics"]["accuracy"] == pytest.approx(expected, abs=0.2)  # an image may lie on the line
    assert entry["settings"] == {"tau": tau}
    assert abs(100 * (logits.argmax(1).numpy() == data.labels).mean() - expected) > 0.3  # it was adjusted


def test_an_ensemble_averages_the_features_of_sizes_and_their_mirror_images() -> None:
    release = zoo.open(PACO)
    model, dataset = release.load().eval(), open_dataset(own_data(release).config, "test", None)
    total = torch.zeros(len(dataset), release.config["num_features"])
    for size in (8, 12):
        resize = transforms.Resize(size, transforms.InterpolationMode(release.preprocess.interpolation))
        normalize = transforms.Normalize(release.preprocess.mean, release.preprocess.std)
        make = transforms.Compose([resize, transforms.ToTensor(), normalize])
        images = torch.stack([make(dataset.image(index)) for index in range(len(dataset))])
        with torch.no_grad():
            total += model(images) + model(images.flip(3))
    predicted = release.require_centers().logits(total / 4).argmax(1)
    entry = zoo.evaluate(release, "classifier", ensemble=[8, 12])
    assert entry["value"] == pytest.approx(100 * (predicted.numpy() == dataset.labels).mean())
    assert entry["settings"] == {"ensemble": [8, 12]}
    assert entry["value"] != zoo.evaluate(release, "classifier")["value"]
    with pytest.raises(ZooError, match="ensemble"):
        zoo.evaluate(release, "classifier", ensemble=[0])


def test_another_folder_of_photos_is_not_the_releases_own_data(tmp_path: Path) -> None:
    for name, count in (("own", 8), ("other", 9)):
        folders(tmp_path / name, a=(count, 0), b=(count, 0))
    own, other = (tmp_path / name / "train" for name in ("own", "other"))  # CLASS/IMAGE
    changes = {"training.epochs": 1, "schedule.warmup_epochs": 0, "training.device": "cpu"}
    made = zoo.finetune(init=PACO, data=own, out=tmp_path / "made", overrides=changes)
    assert own_data(made, own).is_own
    with pytest.warns(ZooWarning, match='"train" is not as it was when .*: test images may be'):
        assert not own_data(made, other).is_own
    with pytest.warns(ZooWarning, match="test images may be"):
        entry = zoo.evaluate(made, "classifier", other, save=False)
    assert entry["metrics"]["test_images"] == 18
    other.rename(other.with_name("photos"))
    assert not own_data(made, other.with_name("photos")).is_own


@pytest.mark.filterwarnings("ignore:data. 3 of the 3 test images:zoo.errors.ZooWarning")
def test_probes_of_a_class_without_training_images_never_predict_it(tmp_path: Path) -> None:
    """A documented behaviour: test images of such a class count as wrong."""
    shard(tmp_path / "train.parquet", [0, 1, 3, 3, 0, 1] * 2, names="wxyz")
    shard(tmp_path / "test.parquet", [2, 2, 2], names="wxyz")
    assert opened("parquet", tmp_path).class_counts.tolist() == [4, 4, 0, 4]
    for protocol, settings in (("knn", {"k": 3}), ("linear", {"l2_grid": [0.1], "folds": 3})):
        entry = zoo.evaluate(PACO, protocol, f"parquet:{tmp_path}", save=False, **settings)
        assert entry["metrics"]["accuracy"] == 0, protocol
