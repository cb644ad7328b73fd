"""A card's code does what it says, without zoo where it can, and its example is what the release computes."""

from __future__ import annotations

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
from zoo.errors import ReleaseError
from zoo.hub.fetch import release_files
from zoo.release import Release
from zoo.release.card import addressed, check_card

CREDIT = "Photo by danielbuechele, CC BY 2.0, cut down."


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
    timm, transformers = code(release)[:2]
    assert "zoo" not in timm + transformers.replace(str(release.path), "")
    expected = release.metrics["example"]["top"]
    assert list(expected.items()) == release.nearest_classes(Image.open(release.path / "example.png"))
    printed = [line.split(" ", 1) for line in run(timm, release.path).splitlines()]
    assert printed == [[f"{probability:.1%}", name] for name, probability in expected.items()]
    answers = ast.literal_eval(run(transformers, release.path))
    assert {each["label"]: each["score"] for each in answers} == pytest.approx(expected, abs=1e-5)
    rows = re.findall(r"^\| (class \d) \| ([\d.]+) \|$", release.card, re.MULTILINE)
    assert rows == [(name, f"{100 * probability:.1f}") for name, probability in expected.items()]


def test_all_programs_run_where_zoo_has_to_register_the_architecture(tmp_path: Path) -> None:
    made = release_of(tmp_path / "r", trained_encoder(), centers=some_centers(64))
    made.add_example(Image.new("L", (50, 40), 77), credit=CREDIT)
    first, *_ = programs = [part for part in code(made) if "transformers" not in part and "timm" not in part]
    root = f"import sys, torch\nsys.path.insert(0, {str(Path(zoo.__file__).parents[1])!r})\n"
    expected = [f"{probability:.1%} {name}" for name, probability in made.metrics["example"]["top"].items()]
    assert run(root + first, made.path).splitlines() == expected
    run(root + "images = torch.zeros(2, 3, 32, 32)\n" + "\n".join(programs[1:]), made.path)


def test_an_example_is_small_goes_to_the_hub_and_stays_when_the_card_is_written_again(
    release: Release,
) -> None:
    file = release.path / "example.png"
    assert 20_000 < file.stat().st_size <= 40_000
    assert "example.png" in release_files(release.path)
    card = release.card
    assert CREDIT in card and card.count("](example.png)") == 1
    assert release.render_card() == card
    check_card(release.path, release.config)
    release.verify()
    there = addressed(card, "alice/lite0")
    assert ModelCard(there).data["widget"] == [
        {
            "src": "https://huggingface.co/alice/lite0/resolve/main/example.png",
            "example_title": "Example",
        }
    ]
    assert "widget" not in ModelCard(zoo.open("cifar_resnet20.paco_digits_lt50").card).data.to_dict()


def test_metadata_are_true_of_the_architecture_and_the_method(release: Release, tmp_path: Path) -> None:
    data = ModelCard(release.card).data
    assert (data.library_name, data.pipeline_tag) == ("timm", "image-classification")
    assert {"timm", "transformers"} <= set(data.tags)
    recipe = """
init: {release: "timm:tf_efficientnet_lite0.in1k"}
data: {long_tail: {profile: exponential}}
objective:
  name: classify
  loss: balanced_softmax
  distill: {teachers: ["hf-hub:alice/paco@main", "shipped:cifar_resnet20.paco_digits_lt50"]}
"""
    made = release_of(tmp_path / "r", trained_encoder(), objective="classify", recipe_text=recipe)
    data = ModelCard(made.card).data
    assert data.base_model == ["timm/tf_efficientnet_lite0.in1k", "alice/paco"]
    assert data.library_name == "contrastive-zoo"
    assert data.tags[1:] == [
        "contrastive-zoo",
        "classify",
        "long-tailed-recognition",
        "knowledge-distillation",
        "balanced-softmax",
    ]


def test_an_example_needs_classes_a_credit_and_a_folder_of_ones_own(tmp_path: Path) -> None:
    image = Image.new("RGB", (20, 20))
    with pytest.raises(ReleaseError, match="has no centers"):
        release_of(tmp_path / "r", trained_encoder()).add_example(image, credit=CREDIT)
    made = release_of(tmp_path / "s", trained_encoder(), centers=some_centers(64))
    with pytest.raises(ReleaseError, match=r"metrics\.json: example: .credit."):
        made.add_example(image, credit="")
    with pytest.raises(ReleaseError, match="shipped release does not change"):
        zoo.open("cifar_resnet20.paco_digits_lt50").add_example(image, credit=CREDIT)
    assert not (made.path / "example.png").exists()
