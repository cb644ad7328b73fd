"""The card says what the release records, and its code does what it says; what differs is refused."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from PIL import Image
from sklearn.datasets import load_sample_image

import zoo
from tests.interop_helpers import release_case
from tests.release_helpers import reads_folders, release_of, some_centers, trained_encoder
from zoo.config import dump_yaml
from zoo.errors import ReleaseError
from zoo.hub.fetch import release_files
from zoo.objectives import SHIPPED
from zoo.release import Release, card, provenance
from zoo.release.card import check_card, with_repo_id

CREDIT = "Photo by danielbuechele, CC BY 2.0, cut down."
LINEAR = {
    **{"protocol": "linear", "data": "digits, long tail 50", "split": "test", "seed": 0},
    "metrics": {"accuracy": 50.126, "balanced_accuracy": 48.0, "few": 12.5, "test_images": 547},
    "settings": {"select": "accuracy"},
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release of an architecture of timm's, in float16, with an example."""
    made, _ = release_case("in float16", tmp_path_factory.mktemp("card") / "r")
    made.add_example(Image.fromarray(load_sample_image("china.jpg")), credit=CREDIT)
    return made


def code(release: Release) -> list[str]:
    """Return the card's programs, reading the folder instead of a repository."""
    text = release.card.replace("hf-hub:ORG/", "local-dir:ORG/")
    text = text.replace(f"ORG/{release.name}", str(release.path))
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@reads_folders
def test_the_first_programs_of_a_card_print_its_example_without_zoo(release: Release) -> None:
    pytest.importorskip("transformers")
    of_timm, _, transformers = code(release)[:3]
    assert "zoo" not in of_timm + transformers.replace(str(release.path), "")
    expected = release.metrics["example"]["top"]
    assert list(expected.items()) == release.nearest_classes(Image.open(release.path / "example.png"))
    printed = [line.split(" ", 1) for line in run(of_timm, release.path).splitlines()]
    assert printed == [[f"{probability:.1%}", name] for name, probability in expected.items()]
    answers = ast.literal_eval(run(transformers, release.path).splitlines()[0])
    assert {each["label"]: each["score"] for each in answers} == pytest.approx(expected, abs=1e-5)


@reads_folders
def test_all_programs_run_where_zoo_has_to_register_the_architecture(tmp_path: Path) -> None:
    made = release_of(tmp_path / "r", trained_encoder(), centers=some_centers(64))
    made.add_example(Image.new("L", (50, 40), 77), credit=CREDIT)
    programs = "\n".join(part for part in code(made) if "transformers" not in part)
    run(f"import sys\nsys.path.insert(0, {str(Path(zoo.__file__).parents[1])!r})\n{programs}", made.path)


def test_an_example_is_small_and_stays_when_the_card_is_written_again(release: Release) -> None:
    assert (release.path / "example.png").stat().st_size < 60_000
    assert "example.png" in release_files(release.path)
    before = release.card
    with card.editing(release.path):
        pass
    assert CREDIT in before and release.card == before
    assert "alice/lite0" in ModelCard(with_repo_id(release.card, "alice/lite0")).data["widget"][0]["src"]


def test_metadata_are_true_of_the_architecture_and_the_method(release: Release, tmp_path: Path) -> None:
    data = ModelCard(release.card).data
    assert (data.library_name, data.pipeline_tag) == ("timm", "image-classification")
    teachers = ["hf-hub:alice/paco@main", "shipped:cifar_resnet20.paco_digits_lt50"]
    recipe = {"init": {"release": "timm:tf_efficientnet_lite0.in1k"}, "data": {"long_tail": {"x": 50}}}
    recipe["objective"] = {"loss": "balanced_softmax", "distill": {"teachers": teachers}}
    text = dump_yaml(recipe)
    made = release_of(tmp_path / "r", trained_encoder(), objective="classify", recipe_text=text)
    data = ModelCard(made.card).data
    assert data.base_model == ["timm/tf_efficientnet_lite0.in1k", "alice/paco"]
    assert (data.library_name, data.pipeline_tag) == ("contrastive-zoo", "image-feature-extraction")
    assert {"long-tailed-recognition", "knowledge-distillation", "balanced-softmax"} <= {*data.tags}
    assert "`timm:tf_efficientnet_lite0.in1k`, whose licence also applies" in made.card


def test_an_example_needs_classes_a_credit_and_a_folder_of_ones_own(tmp_path: Path) -> None:
    made = release_of(tmp_path / "s", trained_encoder(), centers=some_centers(64))
    for release, credit, message in (
        (release_of(tmp_path / "r", trained_encoder()), CREDIT, "no centers"),
        (made, "\x1b[2J", r"metrics\.json: .example.credit."),
        (zoo.open("cifar_resnet20.paco_digits_lt50"), CREDIT, "read-only"),
    ):
        with pytest.raises(ReleaseError, match=message):
            release.add_example(Image.new("RGB", (20, 20)), credit=credit)
    assert not (made.path / "example.png").exists()


@pytest.fixture
def measured(tmp_path: Path) -> Release:
    facts = {"name": "digits", "hub_id": "org/digits", "num_images": 344, "num_classes": 5}
    given = {
        "centers": some_centers(64),
        "metrics": {"training": {"epochs": 60}, "evaluations": [LINEAR, {**LINEAR, "seed": 1}]},
        "dataset": {**facts, "class_counts": {"largest": 125, "smallest": 2}},
        "recipe_text": "objective:\n  name: paco\n  feature_transform: {positives: step}\n",
    }
    return release_of(tmp_path / "r", trained_encoder(), **given)


def change(release: Release, old: str, new: str) -> None:
    assert old in release.card
    (release.path / "README.md").write_text(release.card.replace(old, new))


def test_metadata_and_model_index_are_what_the_hub_reads(measured: Release) -> None:
    data = ModelCard(measured.card).data
    assert (data.license, data.datasets) == ("apache-2.0", ["org/digits"])
    found = {(r.dataset_config, r.metric_type): r.metric_value for r in data.eval_results}
    metrics = (("accuracy", 50.13), ("balanced_accuracy", 48.0), ("few", 12.5))
    assert found == {  # two seeds of one protocol stay two results
        (f"linear (select: accuracy; seed: {seed})", name): value
        for seed in (0, 1)
        for name, value in metrics
    }
    check_card(measured.path, measured.config)
    papers = ("@inproceedings{cui2021paco", "@inproceedings{zhu2021ft")
    row = "| linear | digits, long tail 50 | test | 50.13 | 48.00 | 12.50 | select: accuracy |"
    assert all(said in measured.card for said in (row, *papers))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value: 50.13", "value: 99.9", r"model-index: found .*99.9.*50.13"),
        ("- org/digits", "- a/b", r"datasets: found .'a/b'.*org/digits"),
        ("license: apache-2.0", "license: mit", "license: found 'mit'"),
        ("library_name: contrastive-zoo", "library_name: [timm", "metadata"),
        ("---\n", "", "library_name: found None"),
    ],
)
def test_a_card_whose_metadata_differ_from_the_record_is_refused(measured, old, new, message) -> None:
    change(measured, old, new)
    with pytest.raises(ReleaseError, match=rf"README\.md: {message}"):
        check_card(measured.path, measured.config)


def test_notes_survive_and_the_rest_is_written_anew(measured: Release) -> None:
    change(measured, "again. -->\n", "again. -->\n\n## Mine\n\nSaid by me.\n\n")
    change(measured, "Not meant for", "Gone. Not meant for")
    measured.add_evaluation({**LINEAR, "protocol": "knn", "metrics": {"accuracy": 33.3}})
    assert "## Mine\n\nSaid by me.\n\n<!-- End" in measured.card
    assert "33.30" in measured.card and "Gone." not in measured.card
    check_card(measured.path, measured.config)


def test_the_addressed_card_names_its_repository_and_is_otherwise_the_same(measured: Release) -> None:
    named = with_repo_id(measured.card, "alice/paco")
    assert named.count("alice/paco") == measured.card.count("ORG/cifar_resnet20.paco_test") >= 4
    assert named.replace("alice/paco", "ORG/cifar_resnet20.paco_test") == measured.card
    assert with_repo_id(named, "bob/fork") == with_repo_id(measured.card, "bob/fork"), "pulled and pushed on"


def test_a_licence_is_one_that_the_hub_lists_or_another_by_its_name() -> None:
    assert provenance.license_on_hub("CC-BY-4.0") == ("cc-by-4.0", None)
    assert provenance.license_on_hub("My own, 2.0") == ("other", "my-own-2.0")


def test_every_objective_with_a_paper_is_cited_by_entries_that_exist() -> None:
    for name in SHIPPED:
        text = card.bibtex(name, {"objective": {"loss": "balanced_softmax"} if name == "classify" else {}})
        assert text.startswith("@"), name
