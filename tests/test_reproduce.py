"""`zoo reproduce`: a release trained again by its own recipe, and every recorded figure compared."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import zoo
from tests import warm
from tests.release_helpers import release_of, trained_encoder
from tests.test_api import FOLDER, picture_folder
from zoo.api import Reproduction
from zoo.cli.reproduction import print_reproduction
from zoo.release import Release
from zoo.training import Recipe

PACO = "cifar_resnet20.paco_digits_lt50"
CE = "cifar_resnet20.ce_digits_lt50"
SMALL = (*FOLDER, "training.device=cpu", "evaluation=[{protocol: classifier}, {protocol: knn, k: 3}]")


@pytest.fixture(scope="module")
def again(paco: Release, tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """PaCo's recipe for twelve epochs, trained on this processor and reproduced; read only."""
    found = zoo.reproduce(paco.path, out=tmp_path_factory.mktemp("reproduced") / "paco")
    assert found is not None
    return found


@pytest.fixture
def altered(again: Reproduction, tmp_path: Path) -> Callable[..., Reproduction]:
    """Change metrics.json in a copy of the release, and compare that with the new training."""

    def compare(change: Callable[[dict[str, Any]], object], **options: Any) -> Reproduction:
        copy = Path(shutil.copytree(again.recorded.path, tmp_path / "altered", dirs_exist_ok=True))
        rewrite(copy / "metrics.json", change)
        made = Path(shutil.copytree(again.made.path, tmp_path / "made", dirs_exist_ok=True))
        found = zoo.reproduce(copy, out=made, resume=True, **options)
        assert found is not None
        return found

    return compare


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Release:
    """A classifier of 24 pictures, trained in a moment; read only."""
    return zoo.pretrain(CE, out=tmp_path_factory.mktemp("small") / "release", data=pictures, overrides=SMALL)


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    for entry in data.get("evaluations", ()):
        entry.pop("value", None)  # which follows from the metrics
    file.write_text(json.dumps(data))


def raised(protocol: str, metric: str, points: float) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        (entry,) = (e for e in data["evaluations"] if e["protocol"] == protocol)
        entry["metrics"][metric] += points

    return change


def accuracy(release: Release, protocol: str) -> float:
    (entry,) = (e for e in release.metrics["evaluations"] if e["protocol"] == protocol)
    return float(entry["metrics"]["accuracy"])


def wrong(found: Reproduction) -> list[tuple[str, str]]:
    return [(figure.of, figure.name) for figure in found.figures if not figure.agrees]


def test_paco_is_reproduced_with_all_its_figures(again: Reproduction) -> None:
    assert wrong(again) == []
    assert again.agrees
    assert again.not_repeated == ()
    recorded = again.recorded.metrics
    compared = {(figure.of, figure.name): figure for figure in again.figures}
    for entry in recorded["evaluations"]:
        for name in ("accuracy", "balanced_accuracy", "many", "medium", "few", "test_images"):
            assert compared[entry["protocol"], name].recorded == entry["metrics"][name]
        assert compared[entry["protocol"], "per_class.9"].recorded == entry["metrics"]["per_class"][9]
    assert compared["training", "steps"].reproduced == 12 * 11
    made = json.loads((again.made.path / "metrics.json").read_text())
    for entry in made["evaluations"]:  # what is called reproduced is what the new release holds
        assert compared[entry["protocol"], "accuracy"].reproduced == entry["metrics"]["accuracy"]


def test_the_comparison_lies_beside_the_new_release(again: Reproduction) -> None:
    written = json.loads((again.made.path / "reproduction.json").read_text())
    assert written["agrees"] is True
    assert written["recorded"]["weights_sha256"] == again.recorded.config["zoo"]["weights_sha256"]
    assert written["reproduced"]["weights_sha256"] == again.made.config["zoo"]["weights_sha256"]
    assert written["same_weights"] is again.same_weights
    assert written["recorded"]["environment"]["versions"]["torch"] == version("torch")
    assert "hardware" in written["reproduced"]["environment"]
    first = written["figures"][0]
    assert {"of", "name", "recorded", "reproduced", "difference", "tolerance", "verdict"} == set(first)
    assert len(written["figures"]) == len(again.figures)


@pytest.mark.parametrize(
    ("protocol", "metric"), [("linear", "accuracy"), ("classifier", "balanced_accuracy")]
)
def test_a_figure_raised_by_five_points_is_caught(
    altered: Callable[..., Reproduction], protocol: str, metric: str
) -> None:
    found = altered(raised(protocol, metric, 5.0))
    assert wrong(found) == [(protocol, metric)]
    assert not found.agrees
    assert altered(raised(protocol, metric, 5.0), tolerance=100).agrees


def test_a_fact_of_the_training_that_does_not_come_again_is_caught(
    altered: Callable[..., Reproduction],
) -> None:
    found = altered(lambda data: data["training"].update(disambiguation_accuracy=50.0, steps=133))
    assert wrong(found) == [("training", "steps"), ("training", "disambiguation_accuracy")]


def test_evaluations_added_later_are_repeated_and_those_that_cannot_be_are_named(
    again: Reproduction, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(again.recorded.path, tmp_path / "copy"))
    zoo.evaluate(copy, "knn", k=3, tau=0.2)
    zoo.evaluate(copy, "linear", "digits?imbalance=5&max_per_class=40", l2_grid=[0.01], seed=3)

    def add_unknown(data: dict[str, Any]) -> None:
        known = data["evaluations"][0]
        elsewhere = {**known["train_set"], "source": "parquet", "sha256": "0" * 64}
        data["evaluations"] += [
            {**known, "protocol": "orthogonal"},
            {**known, "data": "flowers label", "train_set": elsewhere},
        ]

    rewrite(copy / "metrics.json", add_unknown)
    made = Path(shutil.copytree(again.made.path, tmp_path / "made"))
    found = zoo.reproduce(copy, out=made, resume=True)
    assert found is not None
    assert found.agrees
    labels = {figure.of for figure in found.figures}
    assert {"knn", "knn #2", "linear", "linear on digits, long tail 5"} < labels
    (unknown, why), (elsewhere, why_not) = found.not_repeated
    assert (unknown, elsewhere) == ("orthogonal", "classifier on flowers label")
    assert 'no protocol "orthogonal"' in why
    assert "source parquet" in why_not
    new = found.made.metrics["evaluations"]
    assert [entry["settings"]["k"] for entry in new if entry["protocol"] == "knn"] == [5, 3]
    (other,) = (entry for entry in new if entry["data"] == "digits, long tail 5")
    assert (other["seed"], other["settings"]["l2_grid"]) == (3, [0.01])
    # the repeated entries, too, are compared with what was recorded
    rewrite(copy / "metrics.json", lambda data: data["evaluations"][3]["metrics"].update(accuracy=20.0))
    found = zoo.reproduce(copy, out=made, resume=True)
    assert found is not None
    assert wrong(found) == [("knn #2", "accuracy")]


def test_weights_that_are_not_the_recorded_ones_are_refused_before_any_training(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(zoo.open(PACO).path, tmp_path / "copy"))
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(zoo.ZooError, match=r"model\.safetensors"):
        zoo.reproduce(copy, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_data_folder_that_is_not_there_is_refused_even_where_none_is_needed(tmp_path: Path) -> None:
    with pytest.raises(zoo.ZooError, match=r'data: no folder or file ".*nowhere"'):
        zoo.reproduce(PACO, data=tmp_path / "nowhere", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def of_other_images(entry: dict[str, Any]) -> None:
    entry["train_set"]["sha256"] = "0" * 64


def of_the_training_images(entry: dict[str, Any]) -> None:
    entry["split"] = "train"


def without_figures(entry: dict[str, Any]) -> None:
    entry["metrics"] = {}
    del entry["metric"], entry["value"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (of_other_images, "sha256 0000"),
        (of_the_training_images, 'split "train"'),
        (without_figures, None),
    ],
)
def test_a_release_of_which_no_evaluation_can_be_compared_is_not_reproduced(
    altered: Callable[..., Reproduction], change: Callable[[dict[str, Any]], None], reason: str | None
) -> None:
    def everywhere(data: dict[str, Any]) -> None:
        for entry in data["evaluations"]:
            entry["metrics"]["accuracy"] = 99.9
            change(entry)

    found = altered(everywhere)
    assert {figure.of for figure in found.figures} == {"training"}
    assert not wrong(found)
    assert not found.agrees
    assert all(reason in why for _, why in found.not_repeated) if reason else not found.not_repeated
    with pytest.raises(zoo.ZooError, match=r"was not reproduced: no figure of its evaluations could be"):
        print_reproduction(found)


def test_the_table_says_what_was_compared_how_and_where(
    again: Reproduction, capsys: pytest.CaptureFixture[str]
) -> None:
    print_reproduction(again)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        *("EVALUATION", "METRIC", "RECORDED", "REPRODUCED", "DIFFERENCE", "TOLERANCE", "VERDICT")
    ]
    (row,) = (line.split() for line in lines if line.split()[:2] == ["classifier", "accuracy"])
    assert row[2] == f"{accuracy(again.recorded, 'classifier'):.2f}"
    (of_classes,) = (line for line in lines if line.startswith("knn ") and "per_class" in line)
    assert "(worst of 10)" in of_classes
    assert any(line.startswith("tolerance: ") for line in lines)
    assert any(line.startswith("weights: ") and "SHA-256" in line for line in lines)
    assert any(line.startswith("recorded in: hardware 1 CPU core") for line in lines)
    count = sum(figure.verdict != "not judged" for figure in again.figures)
    assert count > 50
    assert lines[-1].startswith(f"{PACO} was reproduced: {count} figures agree, ")


def test_a_mismatch_is_status_1_and_one_clear_last_line(again: Reproduction, tmp_path: Path) -> None:
    made = Path(shutil.copytree(again.made.path, tmp_path / "made"))
    copy = Path(shutil.copytree(again.recorded.path, tmp_path / "altered"))
    rewrite(copy / "metrics.json", raised("linear", "accuracy", 5.0))
    arguments = ["reproduce", copy, "--out", made, "--resume"]
    done = warm.zoo(*arguments)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "was not reproduced: 1 of " in done.stderr
    raised_to = f"{accuracy(again.recorded, 'linear') + 5:.2f}"
    assert f"linear: accuracy, recorded {raised_to}, reproduced " in done.stderr
    (row,) = (line.split() for line in done.stdout.splitlines() if "DIFFERS" in line)
    assert row[:3] == ["linear", "accuracy", raised_to]


@pytest.mark.usefixtures("no_pictures")
def test_the_recipe_is_the_release_s_and_a_repeated_small_training_is_the_same_bits(
    small: Release, pictures: Path, tmp_path: Path
) -> None:
    assert Recipe.load(CE).training.epochs != 2  # the checkout's, of the same name
    found = zoo.reproduce(small.path, out=tmp_path / "out", data=pictures, tolerance=0)
    assert found is not None
    assert found.made.recipe["training"]["epochs"] == 2
    assert found.same_weights
    assert found.same_centers
    assert found.agrees


def test_other_data_than_the_release_saw_are_refused_before_any_training(
    small: Release, pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for split, verb in (("train", "trained on 24 images"), ("val", "tested on images")):
        other = Path(shutil.copytree(pictures, tmp_path / split))
        (other / split / "dark" / "03.png").rename(other / split / "dark" / "3.png")
        with pytest.raises(zoo.ZooError, match=rf"was {verb} .* sha256 [0-9a-f]{{64}}, found .* other data"):
            zoo.reproduce(small.path, out=out, data=other)
    with pytest.raises(zoo.ZooError, match="--data"):
        zoo.reproduce(small.path, out=out)
    assert not out.exists()


@pytest.mark.usefixtures("no_pictures")
def test_a_fine_tuned_release_is_reproduced_from_its_start(
    small: Release, pictures: Path, tmp_path: Path
) -> None:
    start = Path(shutil.copytree(small.path, tmp_path / "start"))
    changes = (*SMALL, "optimizer.lr=0.01")
    tuned = zoo.finetune(
        CE, init=start, head="centers", out=tmp_path / "tuned", data=pictures, overrides=changes
    )
    weights = small.config["zoo"]["weights_sha256"]
    assert tuned.metrics["training"]["init_weights_sha256"] == weights
    found = zoo.reproduce(tuned.path, out=tmp_path / "out", data=pictures, tolerance=0)
    assert found is not None
    assert found.agrees
    assert found.same_weights
    assert tuned.config["zoo"]["weights_sha256"] != weights
    assert str(tmp_path) not in (tuned.path / "config.json").read_text(), "the recipe alone has the path"

    rewrite(start / "config.json", lambda config: config["zoo"].update(weights_sha256="0" * 64))
    with pytest.raises(zoo.ZooError, match=rf"weights of sha256 {weights}, but those there now have 0000"):
        zoo.reproduce(tuned.path, out=tmp_path / "other", data=pictures)
    shutil.rmtree(start)
    with pytest.raises(zoo.ZooError, match=r'started from ".*start", which cannot be opened: no folder'):
        zoo.reproduce(tuned.path, out=tmp_path / "other", data=pictures)
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_reproduced_is_refused_in_a_line(tmp_path: Path, small: Release) -> None:
    def refused(name: str | Path, message: str, **options: Any) -> None:
        with pytest.raises(zoo.ZooError, match=message):
            zoo.reproduce(name, **{"out": tmp_path / "out", **options})
        assert not (tmp_path / "out").exists()

    refused("resnet50.moco_v2_in1k", 'is a recipe without a release.*"zoo pretrain resnet50.moco_v2_in1k"')
    refused("cifar_resnet20.paco_digit_lt50", 'Did you mean "cifar_resnet20.paco_digits_lt50"')
    refused(PACO, "tolerance: found -1, expected points from 0 to 100", tolerance=-1)
    refused(PACO, "tolerance: found '1', expected points from 0 to 100", tolerance="1")
    refused(small.path, "is the release that is to be reproduced", out=small.path, resume=True)
    nothing = release_of(tmp_path / "nothing", trained_encoder(), recipe_text=Recipe.load(CE).to_yaml())
    refused(nothing.path, "records no evaluation")
    measured = {"protocol": "knn", "data": "x", "split": "test", "metrics": {"accuracy": 1.0}}
    metrics = {"evaluations": [measured]}
    converted = release_of(
        tmp_path / "converted", trained_encoder(), recipe_text="converted: {file: x}\n", metrics=metrics
    )
    refused(converted.path, "record of a converted release, which cannot be trained")
    far = Recipe.load("cifar_resnet32.paco_cifar100_lt100").to_yaml()
    absent = release_of(tmp_path / "absent", trained_encoder(), recipe_text=far, metrics=metrics)
    refused(absent.path, "cifar100.*--data")
    forged = Path(shutil.copytree(small.path, tmp_path / "forged"))
    (forged / "recipe.yaml").write_text((forged / "recipe.yaml").read_text() + "\n")
    refused(forged, r"recipe\.yaml: sha256 .* but config\.json records")


@pytest.mark.usefixtures("no_pictures")
def test_interrupting_saves_with_status_75_and_resume_compares(pictures: Path, tmp_path: Path) -> None:
    changes = (*SMALL, "training.epochs=60", "training.log_every=1", "training.checkpoint_every=60")
    recorded = zoo.pretrain(CE, out=tmp_path / "recorded", data=pictures, overrides=changes)
    out = tmp_path / "out"
    arguments = [str(recorded.path), "--data", str(pictures), "--out", str(out), "--tolerance", "0"]
    process = warm.start("-m", "zoo", "reproduce", *arguments)
    progress = out / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (progress.is_file() and progress.read_text().count("\n") >= 5):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 75, stderr
    assert "--resume" in stderr
    assert not (out / "config.json").exists()
    found = zoo.reproduce(recorded, data=pictures, out=out, tolerance=0, resume=True)
    assert found is not None
    assert found.agrees
    assert found.same_weights


def test_under_torchrun_all_train_and_the_first_compares(
    small: Release, pictures: Path, tmp_path: Path
) -> None:
    arguments = ["reproduce", str(small.path), "--data", str(pictures), "--out", str(tmp_path / "out")]
    done = warm.run_ranks("-m", "zoo", *arguments, "--tolerance", "100", ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("was reproduced: ") == 1
    written = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    assert written["recorded"]["environment"]["ranks"] == 1
    assert written["reproduced"]["environment"]["ranks"] == 2
