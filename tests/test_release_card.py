"""The card says what the release records, and evaluations and pictures come into both."""

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import ModelCard

import zoo
from tests.release_helpers import release_of, some_centers, trained_encoder
from zoo.errors import ReleaseError
from zoo.hub.fetch import release_files
from zoo.release import Release, format, licenses
from zoo.release.card import check_card

KNN = {
    "protocol": "knn",
    "data": "digits",
    "split": "test",
    "metrics": {"accuracy": 91.23, "many": 98.0, "medium": 90.0, "few": 76.54, "per_class": [0.5, 0.6]},
    "settings": {"k": 20},
    "seed": 0,
    "date": "2026-01-02",
}


@pytest.fixture
def release(tmp_path):
    return release_of(
        tmp_path / "r",
        trained_encoder(),
        centers=some_centers(64),
        dataset={"name": "digits, long-tailed", "hub_id": "org/digits"},
        metrics={"training": {"seed": 41, "time_s": 77.5, "hardware": "2 CPU cores"}, "evaluations": [KNN]},
        description="A paragraph by hand.",
    )


def test_the_cards_metadata_is_what_the_hub_reads(release):
    data = ModelCard(release.card).data
    assert data.library_name == "contrastive-zoo", "plain timm does not know the architecture"
    assert data.license == "apache-2.0"
    assert data.datasets == ["org/digits"]
    assert data.tags == ["image-classification", "contrastive-zoo", "paco", "contrastive-learning"]
    results = {(r.dataset_config, r.dataset_split, r.metric_type): r.metric_value for r in data.eval_results}
    assert results == {
        ("knn (k: 20; seed: 0)", "test", "accuracy"): 91.23,
        ("knn (k: 20; seed: 0)", "test", "many"): 98.0,
        ("knn (k: 20; seed: 0)", "test", "medium"): 90.0,
        ("knn (k: 20; seed: 0)", "test", "few"): 76.54,
    }
    assert "contrastive-zoo" in data.tags, "zoo list --hub finds releases by it"


def test_every_licence_of_timms_weights_is_one_that_the_hub_takes():
    named = {timm.get_pretrained_cfg(name).license for name in timm.list_pretrained()} - {None}
    assert "dinov3-license" in named
    for license in named:
        licenses.check(license)
        listed = license in licenses.IDENTIFIERS
        assert licenses.on_hub(license) == ((license, None) if listed else ("other", license))
    assert licenses.on_hub("Apache-2.0") == ("apache-2.0", None)
    assert licenses.on_hub("openrail++") == ("openrail++", None)
    assert licenses.on_hub("MIT License") == ("mit", None)
    assert licenses.on_hub("Apache License 2.0") == ("apache-2.0", None)


@pytest.mark.parametrize(
    ("license", "name"),
    [("GPL-3.0+", "gpl-3.0-plus"), ("openrail+", "openrail-plus"), ("Other!", "other"), ("mit*", "mit")],
)
def test_a_sign_more_makes_another_licence(license, name):
    assert licenses.on_hub(license) == ("other", name)


def test_the_card_shows_description_training_results_and_use(release):
    card = release.card
    assert "A paragraph by hand." in card
    assert "| knn | digits | test | 91.23 | 98.00 | 90.00 | 76.54 | k: 20 |" in card
    for fact in ("Seed: 41", "Time s: 77.5", "2 CPU cores", "Data: digits, long-tailed", "name: paco"):
        assert fact in card
    assert 'head="centers"' in card


def test_a_headless_release_is_a_feature_extractor(tmp_path):
    card = release_of(tmp_path / "r", trained_encoder()).card
    assert ModelCard(card).data.pipeline_tag == "image-feature-extraction"
    assert "centers" not in card
    assert "AutoModelForImageClassification" not in card
    assert "## Results" not in card


def test_evaluations_are_added_and_equal_ones_replaced(release):
    linear = {**KNN, "protocol": "linear", "settings": {}, "metrics": {"accuracy": 50.0}}
    release.add_evaluation(linear)
    release.add_evaluation({**KNN, "metrics": {"accuracy": 25.0}, "date": "2026-02-03"})
    release.add_evaluation({**KNN, "settings": {"k": 5}})
    again = zoo.open(release.path)
    found = [(e["protocol"], e["settings"], e["metrics"]["accuracy"]) for e in again.metrics["evaluations"]]
    assert sorted(found, key=str) == [
        ("knn", {"k": 20}, 25.0),
        ("knn", {"k": 5}, 91.23),
        ("linear", {}, 50.0),
    ]
    assert "| linear | digits | test | 50.00 |" in again.card
    assert "91.23" in again.card, "k = 5"
    assert "A paragraph by hand." in again.card
    assert len(ModelCard(again.card).data.eval_results) == 6
    again.verify()


def test_an_entry_says_first_what_was_measured_and_has_every_key_that_readers_look_for(release):
    bare = {key: KNN[key] for key in ("metrics", "split", "data")}
    release.add_evaluation({**bare, "protocol": "linear"})
    found = {"recall_at_8": 9.0, "map": 4.0, "recall_at_1": 5.0, "recall_at_16": 9.5, "queries": 7}
    release.add_evaluation(
        {**bare, "protocol": "retrieval", "metrics": found, "seed": 3, "date": "2026-02-03"}
    )
    release.add_evaluation({**bare, "protocol": "own", "metrics": {"accuracy": None, "map": 2.0}})
    release.add_evaluation({**bare, "protocol": "other", "metrics": {"per_class": [1.0], "test_images": 7}})
    written = json.loads((release.path / "metrics.json").read_text())["evaluations"]
    assert [list(entry)[:5] for entry in written] == [["protocol", "data", "split", "metric", "value"]] * 5
    keys = ("protocol", "metric", "value", "seed", "date")
    assert [[entry[key] for key in keys] for entry in written] == [
        ["knn", "accuracy", 91.23, 0, "2026-01-02"],
        ["linear", "accuracy", 91.23, None, None],
        ["retrieval", "recall_at_1", 5.0, 3, "2026-02-03"],
        ["own", "map", 2.0, None, None],
        ["other", None, None, None, None],  # of which tables show nothing
    ]
    assert release.metrics["evaluations"] == written


def test_entries_of_before_there_was_a_value_are_read_with_it_and_completed_when_written_again(release):
    file = release.path / "metrics.json"
    now = json.loads(file.read_text())
    (entry,) = now["evaluations"]
    file.write_text(json.dumps({**now, "evaluations": [KNN]}))
    assert "value" not in file.read_text()
    assert release.metrics == now and entry == {**KNN, "metric": "accuracy", "value": 91.23}
    release.add_evaluation({**KNN, "settings": {"k": 5}})
    assert json.loads(file.read_text())["evaluations"][0] == entry
    assert list(json.loads(file.read_text())) == ["format", "training", "evaluations"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"value": 95.0}, "value.: found 95.0, as .metric. 'accuracy'; expected 91.23, which"),
        ({"value": "91.23"}, "value.: found '91.23', as .metric. 'accuracy'; expected 91.23, which"),
        ({"metric": "few", "value": 91.23}, "value.: found 91.23, as .metric. 'few'; expected 76.54, which"),
        ({"metric": None, "value": 91.23}, "value.: found 91.23, as .metric. None; expected None, which"),
        ({"metric": "top5", "value": 91.23}, "metric.: found 'top5', expected a name in .metrics.; "),
        ({"metric": "top5"}, "metric.: found 'top5', expected a name in .metrics.; "),
        ({"metric": ["few"]}, "metric.: found .'few'., expected a name in .metrics.; "),
    ],
)
def test_a_value_that_is_not_in_the_metrics_is_refused(release, said, message):
    before = (release.path / "metrics.json").read_bytes()
    with pytest.raises(ReleaseError, match=f"an evaluation of .*paco_test: .{message}"):
        release.add_evaluation({**KNN, **said})
    assert (release.path / "metrics.json").read_bytes() == before
    metrics = {**release.metrics, "evaluations": [{**KNN, **said}]}
    (release.path / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(ReleaseError, match=rf"metrics\.json: evaluation 0: .{message}"):
        _ = release.metrics


def test_another_choice_of_the_headline_is_no_contradiction(release):
    other = {**KNN, "metric": "few", "value": 76.54}
    (release.path / "metrics.json").write_text(json.dumps({**release.metrics, "evaluations": [other]}))
    assert release.metrics["evaluations"] == [{**KNN, "metric": "accuracy", "value": 91.23}]


def test_evaluations_that_are_added_at_one_time_are_all_kept(release, monkeypatch):
    def read(folder):
        metrics = read_metrics(folder)
        time.sleep(0.02)  # in which another might write
        return metrics

    read_metrics = format.read_metrics
    monkeypatch.setattr(format, "read_metrics", read)
    entries = [{**KNN, "settings": {"k": k}, "metrics": {"accuracy": 50 + k}} for k in range(1, 7)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda entry: zoo.open(release.path).add_evaluation(entry), entries))
    assert len(release.metrics["evaluations"]) == 1 + len(entries)
    assert all(f"{50 + k:.2f}" in release.card for k in range(1, 7))
    assert ".lock" not in release_files(release.path)
    check_card(release.path, release.config)


def test_a_release_that_is_gone_is_not_begun_anew(release):
    shutil.rmtree(release.path)
    with pytest.raises(ReleaseError, match="not there any more"):
        release.render_card()
    assert not release.path.exists()


def test_an_evaluation_without_its_data_is_refused(release):
    with pytest.raises(ReleaseError, match="needs data, metrics"):
        release.add_evaluation({"protocol": "knn", "split": "test"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "x\x1b"}, "control characters"),
        ({"metrics": {"accuracy": "9"}}, "expected a number"),
        (
            {"metrics": {"accuracy": 9.0, "calibration_error": "x"}},
            '"calibration_error": found .x., expected',
        ),
        (
            {"metrics": {"accuracy": 9.0, "accuracy_interval": "x"}},
            '"accuracy_interval": found .x., expected',
        ),
        ({"metrics": {"recall_at_1": "x"}}, '"recall_at_1": found .x., expected a number'),
        ({"metrics": {"accuracy": torch.ones(2)}}, r'"metrics.accuracy": found tensor.*, expected a number'),
        ({"metrics": {1: 9.0}}, '"metrics": found the key 1, expected words'),
        ({2: "x"}, "paco_test: found the key 2, expected words"),
        ({"settings": {"of": [date(2026, 1, 1)]}}, r'"settings.of.0": found datetime.date\(2026, 1, 1\)'),
        ({"seed": "0"}, "\"seed\": found '0', expected a whole number or null"),
        ({"seed": True}, '"seed": found True, expected a whole number or null'),
        ({"date": 20260101}, '"date": found 20260101, expected a word or null'),
    ],
)
def test_an_evaluation_that_could_not_be_read_is_not_written(release, changes, message):
    before = (release.path / "metrics.json").read_bytes()
    with pytest.raises(ReleaseError, match=message):
        release.add_evaluation({**KNN, **changes})
    assert (release.path / "metrics.json").read_bytes() == before


def test_numbers_of_numpy_and_torch_are_written_as_pythons(release):
    metrics = {"accuracy": np.float32(50.5), "recall_at_1": torch.tensor(70.25), "of_draws": (np.int64(1),)}
    release.add_evaluation({**KNN, "data": "other", "metrics": metrics, "seed": np.int64(3)})
    entry = json.loads((release.path / "metrics.json").read_text())["evaluations"][-1]
    assert entry["metrics"] == {"accuracy": 50.5, "recall_at_1": 70.25, "of_draws": [1]}
    assert (entry["metric"], entry["value"], entry["seed"]) == ("accuracy", 50.5, 3)


def test_an_evaluation_that_is_no_mapping_is_refused(release):
    for entry in (None, ["accuracy", 9.0]):
        with pytest.raises(ReleaseError, match="needs protocol, data, split, metrics"):
            release.add_evaluation(entry)


def test_an_accuracy_that_was_not_measured_is_shown_as_none(release):
    metrics = {"accuracy": None, "balanced_accuracy": 10.0}
    (release.path / "metrics.json").write_text(
        json.dumps({**release.metrics, "evaluations": [{**KNN, "metrics": metrics}]})
    )
    assert "%" not in repr(release)
    release.add_evaluation({**KNN, "data": "other"})
    assert "91.2 % by knn on other" in repr(release)


def with_pictures(tmp_path, *names, **changes):
    (tmp_path / "source.png").write_bytes(b"png")
    pictures = dict.fromkeys(names, tmp_path / "source.png")
    return release_of(tmp_path / "r", trained_encoder(), pictures=pictures, **changes)


def test_pictures_are_copied_and_shown(tmp_path):
    made = with_pictures(tmp_path, "training_curves")
    assert (made.path / "training_curves.png").read_bytes() == b"png"
    assert "![training curves](training_curves.png)" in made.card
    with pytest.raises(ReleaseError, match=r"cannot be written: .*absent\.png"):
        release_of(tmp_path / "r", trained_encoder(), pictures={"more": tmp_path / "absent.png"})
    assert Release.at(made.path).card == made.card


def test_a_folder_that_cannot_be_written_is_a_clear_error(release, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    before = release.card
    monkeypatch.setattr(Path, "write_text", refuse)  # the tests may run as root, whom no permission stops
    with pytest.raises(ReleaseError, match="cannot be changed"):
        release.add_evaluation({**KNN, "settings": {"k": 1}})
    monkeypatch.undo()
    assert release.card == before
    assert len(release.metrics["evaluations"]) == 1


def test_pictures_of_a_training_are_grouped_with_words_for_who_sees_them_and_who_does_not(tmp_path):
    names = ("accuracy", "balance", "centers", "curves", "features", "mine", "scores")
    release = with_pictures(tmp_path, *names)
    card = release.card
    shown = re.findall(r"^(?:### (.+)|!\[(.+)\]\((\w+)\.png\))$", card, re.MULTILINE)
    assert [heading or name for heading, _, name in shown] == [
        "How the training went",
        *("curves", "scores", "balance"),
        "What it learned",
        *("features", "centers", "accuracy"),
        "Further",
        "mine",
    ]
    alts = [alt for _, alt, name in shown if name and name != "mine"]
    assert len(set(alts)) == 6
    assert all(len(alt.split()) > 6 for alt in alts), "a file's name says nothing to who does not see it"
    for alt in alts:
        sentence = card[: card.index(f"![{alt}]")].rstrip().splitlines()[-1]
        assert sentence.endswith("."), "above each stands how to read it"
    check_card(release.path, release.config)


@pytest.mark.parametrize("smallest", [5, 250])
def test_a_card_says_of_balanced_classes_nothing_of_rare_ones(tmp_path, smallest):
    dataset = {"name": "digits", "class_counts": {"largest": 250, "smallest": smallest}}
    found = with_pictures(tmp_path, "accuracy", "balance", dataset=dataset)
    level = smallest == 250
    assert ("being rare" in found.card) == ("falls to the right" in found.card) == (not level)
    assert ("sorted from the worst to the best](accuracy.png)" in found.card) == level
