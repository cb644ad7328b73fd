"""What all protocols share: identity of entries, tables and cards of any metrics, bad input in one line."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from zoo.evaluation.printed import columns, plain

import zoo
from zoo.cli.show import print_evaluations
from zoo.data import open_dataset
from zoo.errors import ZooError, ZooWarning
from zoo.evaluation.measure import _without_prior
from zoo.evaluation.metrics import calibration_error
from zoo.experiments.reproduce import _spec
from zoo.functional.knn import knn_predict
from zoo.modules import Centers
from zoo.recipe import Recipe
from zoo.recipe.protocols import PROTOCOLS
from zoo.release import Release
from zoo.release.card import check_card


def guo(logits: np.ndarray, labels: np.ndarray, bins: int) -> float:
    """As the authors' code has it (github.com/gpleiss/temperature_scaling), on a grid of boundaries."""
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    confidence, right = p.max(1), p.argmax(1) == labels
    edges, ece = np.linspace(0, 1, bins + 1), 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            ece += abs(confidence[inside].mean() - right[inside].mean()) * inside.mean()
    return 100 * ece


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_is_that_of_the_authors_code(scale: float, bins: int) -> None:
    g = torch.Generator().manual_seed(0)
    logits, labels = scale * torch.randn(300, 4, generator=g), torch.randint(0, 4, (300,), generator=g)
    logits[torch.arange(300), labels] += scale
    expected = guo(logits.double().numpy(), labels.numpy(), bins)
    assert calibration_error(logits, labels, bins) == pytest.approx(expected, abs=1e-9)


def test_calibration_error_by_hand() -> None:
    """Two of confidence 0.8, one of them right; one of confidence 0.5, right: (2 * 0.3 + 0.5) / 3."""
    logits = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.5, 0.5]]).log()
    assert calibration_error(logits, torch.tensor([0, 1, 0])) == pytest.approx(110 / 3, abs=1e-4)
    unseen = torch.tensor([[3.0, -torch.inf], [3.0, -torch.inf]])
    assert calibration_error(unseen, torch.tensor([0, 1])) == pytest.approx(50)


def test_protocols_with_probabilities_say_how_calibrated_they_are(paco: Release, tmp_path: Path) -> None:
    for protocol, settings in (
        ("few_shot", {"shots": 2}),
        ("linear", {"l2_grid": [1e-2]}),
        ("classifier", {}),
        ("linear_full", {"epochs": 1, "milestones": [], "out": tmp_path / "run"}),
    ):
        entry = zoo.evaluate(paco, protocol, save=False, **settings)
        assert 0 < entry["metrics"]["calibration_error"] < 100, protocol
        check_complete(entry)
    entry = zoo.evaluate(paco, "knn", save=False)
    assert "calibration_error" not in entry["metrics"]
    check_complete(entry)


def check_complete(entry: dict[str, Any], metric: str = "accuracy") -> None:
    """An entry has all that the contract of metrics.json lists, whatever the protocol."""
    assert (entry["metric"], entry["value"]) == (metric, entry["metrics"][metric])
    assert isinstance(entry["value"], float) and entry["split"] == "test"
    seeded = "seed" in PROTOCOLS[entry["protocol"]].model_fields
    assert isinstance(entry["seed"], int) if seeded else entry["seed"] is None
    assert datetime.fromisoformat(entry["date"]).tzinfo is not None


def test_entries_that_differ_in_settings_stand_side_by_side_in_metrics_card_and_tables(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = zoo.open(copied)
    before = release.metrics["evaluations"]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("few_shot", {"shots": 1}),
        ("few_shot", {"shots": 2, "seed": 1}),
        ("few_shot", {"shots": 2}),
        ("few_shot", {"shots": 2, "classifier": "mean"}),
        ("retrieval", {}),
        ("retrieval", {"gallery": "train"}),
        ("retrieval", {"k": [1, 16]}),
    ]
    entries = [zoo.evaluate(copied, protocol, **settings) for protocol, settings in asked]
    zoo.evaluate(copied, "few_shot", shots=2, seed=1)  # again: in place of the first
    found = zoo.open(copied).metrics["evaluations"]
    assert len(found) == len(before) + len(asked)
    assert all(entry in found for entry in [*before, *entries[:1], *entries[2:]])
    for entry in entries:
        check_complete(entry, "recall_at_1" if entry["protocol"] == "retrieval" else "accuracy")
    card = zoo.open(copied).card
    few = entries[0]["metrics"]
    assert f"| {few['accuracy']:.2f} ± {few['accuracy_interval']:.2f} |" in card
    assert "| Recall@1 (%) | Recall@2 (%) | Recall@4 (%) | Recall@8 (%) | Recall@16 (%) | mAP (%) |" in card
    assert "Calibration error (%)" in card
    check_card(copied, release.config)
    print_evaluations(found)
    shown = capsys.readouterr().out
    for text in ("few_shot n=1", "few_shot n=2 #2", "few_shot n=2, class mean", "retrieval in train", "mAP"):
        assert text in shown


def test_entries_without_the_newer_metrics_have_the_columns_they_had() -> None:
    old = {"accuracy": 50.0, "balanced_accuracy": 50.0, "many": None, "medium": None, "few": None}
    assert list(columns([old])) == ["accuracy", "balanced_accuracy", "many", "medium", "few"]
    both = plain({"old": old, "new": old | {"accuracy_interval": 1.25, "calibration_error": 3.0}})
    assert both.splitlines() == [
        "method           accuracy  balanced  many  medium  few  ECE",
        "old                  50.0      50.0     -       -    -    -",
        "new     50.0 [48.8, 51.2]      50.0     -       -    -  3.0",
    ]
    found = {"recall_at_8": 9.0, "recall_at_16": 9.5, "recall_at_1": 5.0, "map": 4.0, "queries": 7}
    assert list(columns([found]).values()) == ["R@1", "R@8", "R@16", "mAP"]
    assert list(columns([found | {"recall_at_x": 1.0}])) == list(columns([found]))  # of somebody's own


def folders(root: Path, **counts: tuple[int, int]) -> str:
    """Make images of classes, so many for training and test each; return the data spec."""
    generator = np.random.default_rng(0)
    for name, pair in counts.items():
        for split, count in zip(("train", "val"), pair, strict=True):
            for i in range(count):
                folder = root / split / name
                folder.mkdir(parents=True, exist_ok=True)
                pixels = generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return f"folder:{root}"


@pytest.mark.parametrize(
    ("protocol", "counts", "expected"),
    [
        ("linear", {"a": (1, 2), "b": (1, 2)}, "a single training image, so none can validate"),
        ("linear", {"a": (3, 2)}, "found only class 0 in training, expected two or more"),
        ("few_shot", {"a": (9, 2), "b": (3, 2)}, 'class "b" has 3; expected 5 training images'),
        ("classifier", {"a": (3, 2), "b": (3, 2)}, "found 2 classes (a, b), expected the 5 of"),
        ("retrieval", {"a": (3, 1), "b": (3, 1)}, "no query has another image of its class"),
    ],
)
def test_data_that_a_protocol_cannot_measure_on_are_refused_in_one_line(
    protocol: str, counts: dict[str, tuple[int, int]], expected: str, made: Release, tmp_path: Path
) -> None:
    data = folders(tmp_path, **counts)
    with pytest.raises(ZooError) as error:
        zoo.evaluate(made, protocol, data, save=False)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_class_folder_missing_in_training_is_named(made: Release, tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="extra") as error:
        zoo.evaluate(made, "knn", folders(tmp_path, a=(2, 2), b=(2, 2), extra=(0, 2)), save=False)
    assert "\n" not in str(error.value)


def test_accuracy_is_over_the_classes_that_have_test_images(made: Release, tmp_path: Path) -> None:
    with pytest.warns(ZooWarning, match='no image of 1 of the 3 classes \\("rare"\\)'):
        data = folders(tmp_path, a=(2, 2), b=(2, 2), rare=(1, 0))
        entry = zoo.evaluate(made, "knn", data, save=False, k=1)
    assert entry["metrics"]["per_class"][2] is None
    assert entry["metrics"]["test_images"] == 4


def test_a_labelled_batch_without_training_images_and_some_classes_is_classified(
    made: Release, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = {"class 3": (2, 3), "class 1": (2, 2)}
    data = folders(tmp_path, **names)
    with pytest.warns(ZooWarning, match="test images are of 2 of .*'s 5 classes"):
        whole = zoo.evaluate(made, "classifier", data, save=False)
    shutil.rmtree(tmp_path / "train")
    with pytest.warns(ZooWarning, match="test images are of 2 of .*'s 5 classes"):
        entry = zoo.evaluate(made, "classifier", data, save=False)
    assert entry["metrics"] == whole["metrics"]
    assert [value is not None for value in entry["metrics"]["per_class"]] == [False, True, False, True, False]
    assert entry["train_set"] is None and entry["test_set"] == whole["test_set"]
    assert entry["chosen"] == {"train_counts": "of the centers"}
    assert entry["classes_measured"] == whole["classes_measured"] == 2
    copy = zoo.open(Path(shutil.copytree(made.path, tmp_path_factory.mktemp("release") / "copy")))
    copy.add_evaluation(entry)
    check_card(copy.path, copy.config)
    assert "| test, 2 of 5 classes |" in copy.card and "no training images were at hand" in copy.card
    assert {result.dataset_split for result in ModelCard(copy.card).data.eval_results} >= {
        "test, 2 of 5 classes"
    }
    found = zoo.evaluate(made, "retrieval", data, save=False)
    assert found["metrics"]["test_images"] == 5 and found["data"] == tmp_path.name
    for protocol, settings in (("knn", {}), ("retrieval", {"gallery": "train"})):
        with pytest.raises(ZooError, match='no train folder "train"'):
            zoo.evaluate(made, protocol, data, save=False, **settings)
    with pytest.raises(ZooError, match=r"\(source folder\), of which it records no place"):
        _spec(entry, None)
    (tmp_path / "val" / "class 1").rename(tmp_path / "val" / "clas 1")
    with pytest.raises(ZooError, match='of which "clas 1" is none'):
        zoo.evaluate(made, "classifier", data, save=False)


def test_one_image_per_class_is_enough_for_knn_one_shot_and_a_given_penalty(
    made: Release, tmp_path: Path
) -> None:
    data = folders(tmp_path, a=(1, 3), b=(1, 3))
    for protocol, settings in (("knn", {"k": 1}), ("few_shot", {"shots": 1}), ("linear", {"l2_grid": [0.1]})):
        entry = zoo.evaluate(made, protocol, data, save=False, **settings)
        assert entry["metrics"]["test_images"] == 6


def test_more_neighbours_than_a_class_has_images_are_warned_of_and_those_that_voted_shown(
    made: Release, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folders(tmp_path / "data", a=(3, 2), b=(5, 2))
    zoo.evaluate(made, "knn", data, save=False, k=4)
    with pytest.warns(ZooWarning, match="k = 5, but 8 training images of 2 classes, 4 of each.* at most 4"):
        assert zoo.evaluate(made, "knn", data, save=False, k=5)["chosen"] == {"k": 5}
    copied = Path(shutil.copytree(made.path, tmp_path / "copy"))
    with pytest.warns(ZooWarning, match="k = 20"):
        assert zoo.evaluate(copied, "knn", data)["chosen"] == {"k": 8}
    assert "| k: 8 (20 asked); tau: 0.07 |" in zoo.open(copied).card
    check_card(copied, zoo.open(copied).config)
    print_evaluations(zoo.open(copied).metrics["evaluations"])
    assert "knn k=8 (20 asked) " in capsys.readouterr().out


def test_a_class_without_test_images_has_no_accuracy_and_one_without_training_images_is_never_right() -> None:
    from zoo.evaluation.answers import Classes, Truth

    truth = Truth(torch.tensor([0, 0, 2]), torch.tensor([5, 5, 0]), ["a", "b", "c"])
    metrics = Classes(torch.tensor([0, 1, 0])).metrics(truth)
    assert metrics["per_class"] == [50.0, None, 0.0]
    voted = knn_predict(torch.eye(3), torch.tensor([0, 0, 1]), torch.eye(3), k=1, num_classes=3)
    assert 2 not in voted.predictions.tolist()


def test_a_release_without_centers_that_is_asked_for_them_says_what_else_there_is(
    moco: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZooError, match=r'needs learned centers; this encoder has none.*"linear" or "knn"'):
        zoo.evaluate(moco, "classifier", save=False)
    assert "measuring" not in capsys.readouterr().err  # refused first


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_a_classifier_less_the_log_prior(tau: float, paco: Release) -> None:
    data, transform = (
        open_dataset(Recipe.load(paco.path / "recipe.yaml").data, "test", None),
        paco.transform(),
    )
    images = torch.stack([transform(data.image(row)) for row in range(len(data))])
    with torch.no_grad():
        logits = zoo.load(paco.path, head="centers").eval()(images).double()
    counts = paco.centers.class_counts.double()
    predicted = (logits - tau * (counts / counts.sum()).log()).argmax(1)
    with pytest.warns(UserWarning, match="log prior in its loss.* tau takes it off again"):
        entry = zoo.evaluate(paco, "classifier", tau=tau, save=False)
    expected = 100 * (predicted.numpy() == data.labels).mean()
    assert entry["metrics"]["accuracy"] == pytest.approx(expected, abs=0.2)  # an image may lie on the line
    assert entry["settings"] == {"tau": tau}
    plain = 100 * (logits.argmax(1).numpy() == data.labels).mean()
    assert abs(plain - expected) > 0.5  # else nothing was adjusted


def test_classes_have_many_or_few_images_by_what_the_centers_were_learned_from(paco: Release) -> None:
    """On other data, too: "digits" alone is balanced, and every class of it has more than 100 images."""
    own, other = (zoo.evaluate(paco, "classifier", data, save=False) for data in (None, "digits"))
    assert own["train_set"]["sha256"] != other["train_set"]["sha256"]
    assert other["metrics"] == own["metrics"]  # the test images are the same
    assert own["metrics"]["few"] is not None
    assert other["chosen"] == {"train_counts": "of the centers"}
    assert own["chosen"] == {}
    probed = zoo.evaluate(paco, "linear", "digits", save=False, l2_grid=[1e-3])
    assert probed["metrics"]["few"] is None  # a probe learns from the data that are given


def test_a_class_without_training_images_is_never_predicted_however_rare_its_prior() -> None:
    centers = Centers(torch.eye(3), torch.zeros(3), torch.tensor([10, 5, 0]))
    adjusted = _without_prior(centers, 1.0)
    features = torch.tensor([[0.0, 0.0, 9.0], [1.0, 0.4, 0.0], [1.0, 0.2, 0.0]])  # log 2 lies between
    assert adjusted.logits(features).argmax(1).tolist() == [1, 1, 0]
    unknown = centers._replace(class_counts=torch.tensor([-1, -1, -1]))
    with pytest.raises(ZooError, match="tau: found centers without the number of training images"):
        _without_prior(unknown, 1.0)


@pytest.mark.parametrize(("rows", "queries"), [(100_000, 500)])
def test_knn_and_extraction_hold_no_copy_of_the_features(rows: int, queries: int) -> None:
    """195 MiB of features with 120 MiB to allocate: those in a file are enough, those in memory too many."""
    pytest.importorskip("resource")
    common = ["--rows", str(rows), "--queries", str(queries), "--room", "120"]
    mapped = _memory(*common, "--large", "1")
    assert mapped.returncode == 0, mapped.stderr
    assert json.loads(mapped.stdout)["accuracy"] > 95
    held = _memory(*common, "--large", "100000")
    assert held.returncode != 0
    assert "can't allocate memory" in held.stderr


@pytest.mark.slow
def test_knn_of_a_million_features_of_512_runs_within_2_gib() -> None:
    done = _memory("--rows", "1000000", "--queries", "2000", "--limit", "2048")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bank_mib"] == 1953
    assert found["peak_private_mib"] < 1024
    assert found["accuracy"] > 95


def _memory(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.programs.knn_memory", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
    )
