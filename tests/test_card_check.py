"""A card may be published when its metadata and results are what the release records."""

import json

import pytest
from huggingface_hub import ModelCard

import zoo
from tests.release_helpers import release_of, some_centers, trained_encoder
from zoo.errors import ReleaseError
from zoo.release import card

LINEAR = {
    "protocol": "linear",
    "data": "digits, long tail 50",
    "split": "test",
    "metrics": {"accuracy": 50.126, "balanced_accuracy": 48.0, "few": 12.5, "test_images": 547},
    "settings": {"select": "accuracy"},
    "seed": 0,
}
RUN = {
    **{"steps": 660, "epochs": 60, "images": 20640, "seconds": 1234.56, "images_per_second": 16.7},
    **{"hardware": "2 CPU cores", "seed": 41, "versions": {"torch": "2.15.0"}},
}
RECIPE = "objective:\n  name: paco\n  rebalance: true\n  feature_transform: {positives: step}\n  tau: 0.07\n"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return release_of(
        tmp_path_factory.mktemp("card") / "r",
        trained_encoder(),
        centers=some_centers(64),
        metrics={"training": RUN, "evaluations": [LINEAR, {**LINEAR, "seed": 1}]},
        dataset={
            **{"name": "digits", "split": "train", "num_images": 344, "num_classes": 5},
            "class_counts": {"largest": 125, "smallest": 2},
        },
        recipe_text=RECIPE,
        description="Trained by hand in 77.25 minutes.",
    )


@pytest.fixture
def release(original, tmp_path):
    import shutil

    return zoo.open(shutil.copytree(original.path, tmp_path / "r"))


def change(release, old: str, new: str) -> None:
    assert old in release.card
    (release.path / "README.md").write_text(release.card.replace(old, new))


def check(release) -> None:
    card.check_card(release.path, release.config)


def test_a_rendered_card_passes(release):
    check(release)


def test_two_seeds_of_one_protocol_stay_two_results(release):
    assert len(ModelCard(release.card).data.to_dict()["model-index"][0]["results"]) == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "value: 50.13",
            "value: 99.9",
            r"model-index: accuracy of .linear.*found 99.9, but metrics.json has 50.13",
        ),
        ("type: few", "type: many", "model-index: many of .*found 12.5, but metrics.json has nothing"),
        (
            "library_name: contrastive-zoo",
            "library_name: contrastive-zoo\ndatasets:\n- a/b",
            r"datasets: found .'a/b'., expected None",
        ),
        (
            "library_name: contrastive-zoo",
            "library_name: contrastive-zoo\nbase_model: a/b",
            "base_model: found 'a/b', expected None",
        ),
        (
            "license: apache-2.0",
            "license: mit",
            r"license: found 'mit', expected 'apache-2.0'. config.json records the licence. To set another "
            r"one: zoo push \S+ ORG/NAME --license mit, or .*\.with_license\(\"mit\"\); both write",
        ),
        (
            "license: apache-2.0",
            "license: apache-2.0\nlicense_name: my own",
            r"license_name: found 'my own', expected None.* --license 'my own', or",
        ),
        ("- contrastive-zoo\n", "", "tags: .*expected .contrastive-zoo."),
        ("library_name: contrastive-zoo", "library_name: [timm", "metadata that the Hub does not take"),
        ("- name: cifar_resnet20.paco_test\n  results:", "- results:", "metadata that the Hub does not take"),
    ],
)
def test_a_card_that_says_something_else_is_refused(release, old, new, message):
    change(release, old, new)
    with pytest.raises(ReleaseError, match=message):
        check(release)


def test_a_card_without_metadata_is_refused(release):
    (release.path / "README.md").write_text(ModelCard(release.card).text)
    with pytest.raises(ReleaseError, match=r"README.md: library_name: found None, .*render_card"):
        check(release)
    release.render_card()
    check(release)


def test_a_card_whose_evaluation_is_gone_from_the_metrics_is_refused(release):
    metrics = release.metrics
    metrics["evaluations"].pop()
    (release.path / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(
        ReleaseError, match=r"model-index: .*seed: 1.*found 50.13, but metrics.json has nothing"
    ):
        check(release)


def test_notes_survive_and_the_rest_is_written_anew(release):
    change(release, "again. -->\n", "again. -->\n\n## Mine\n\nSaid by me.\n\n")
    change(release, "- Not meant for", "Gone. Not meant for")
    release.add_evaluation({**LINEAR, "protocol": "knn", "settings": {"k": 3}, "metrics": {"accuracy": 33.3}})
    assert "## Mine\n\nSaid by me.\n\n<!-- End" in release.card
    assert "33.30" in release.card
    assert "Gone." not in release.card
    check(release)
    assert release.render_card() == release.render_card()


def test_the_addressed_card_names_its_repository_and_is_otherwise_the_same(release):
    named = card.addressed(release.card, "alice/paco")
    assert "ORG/" not in named
    assert named.count("alice/paco") == release.card.count("ORG/cifar_resnet20.paco_test") >= 4
    assert named.replace("alice/paco", "ORG/cifar_resnet20.paco_test") == release.card
    assert card.addressed(named, "bob/fork") == card.addressed(release.card, "bob/fork"), (
        "pulled and pushed on"
    )
    assert card.addressed("no code", "bob/fork") == "no code"


def test_the_card_tells_run_data_limits_and_papers(release):
    text = release.card
    for said in (
        "digits, train split, 344 images of 5 classes, from 125 down to 2 images a class",
        "60 epochs, 660 steps, 20,640 images in 1,234.6 s (16.7 images/s) on 2 CPU cores",
        "rare ones to be recognised less well",
        "One run with one seed",
        "the log class frequencies were added",
        "@inproceedings{cui2021paco",
        "@inproceedings{zhu2021ft",
        "released under `apache-2.0`",
    ):
        assert said in text


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ({"name": "bcl"}, True),
        ({"name": "classify", "loss": "balanced_softmax"}, True),
        ({"name": "classify", "loss": "cross_entropy"}, False),
        ({"name": "gpaco", "rebalance": False}, False),
    ],
)
def test_a_card_says_of_centers_whether_training_added_the_prior(tmp_path, objective, said):
    recipe = json.dumps({"objective": objective})  # which YAML reads, too
    text = release_of(tmp_path / "r", trained_encoder(), centers=some_centers(64), recipe_text=recipe).card
    assert ("the log class frequencies were added" in text) == said


def test_classes_of_as_many_images_are_said_to_be_so(tmp_path):
    even = {"name": "digits", "split": "train", "num_images": 60, "num_classes": 5}
    even["class_counts"] = {"largest": 12, "smallest": 12}
    card = release_of(tmp_path / "r", trained_encoder(), dataset=even).card
    assert "digits, train split, 60 images of 5 classes, 12 of each\n" in card


def test_weights_trained_on_from_timms_name_them(tmp_path):
    release = release_of(
        tmp_path / "r", trained_encoder(), recipe_text="init: {release: 'timm:resnet152.tv_in1k'}\n"
    )
    data = ModelCard(release.card).data
    assert data.base_model == "timm/resnet152.tv_in1k"
    assert data.base_model_relation == "finetune"


def test_every_objective_with_a_paper_is_cited_by_entries_that_exist():
    from zoo.objectives import OBJECTIVES

    for name in OBJECTIVES:
        text = card.bibtex(name, {"objective": {"loss": "balanced_softmax"} if name == "classify" else {}})
        assert text.startswith("@"), name
