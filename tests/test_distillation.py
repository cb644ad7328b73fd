"""Teachers beside the labels: who is asked what, what is recorded, and who may teach."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import zoo
from tests.objective_helpers import batch
from tests.release_helpers import release_of, some_centers, trained_encoder
from tests.test_objective_losses import TEACH, after_a_step
from tests.test_training import assert_same_state, recipe
from zoo.data import open_dataset
from zoo.errors import ReleaseError, TrainingError
from zoo.modules import Centers, ema_tensors
from zoo.objectives import Objective
from zoo.release import Release
from zoo.release.card import bibtex
from zoo.release.provenance import teacher_sha256
from zoo.report.finish import inherited_license
from zoo.training import RunFolder, build_objective, train

PACO = "shipped:cifar_resnet20.paco_digits_lt50"


def override(*teachers: object) -> str:
    section = {"teachers": [str(each) for each in teachers], "weight": 0.9, "tau": 4.0}
    return f"objective.distill={json.dumps(section)}"


def test_teachers_are_asked_about_the_mixed_images_that_the_student_sees() -> None:
    seen, objective = list[Tensor](), after_a_step("classify", mix={"mixup": 1.0}, **TEACH).train()
    for network in (*objective.teachers, objective.encoder):
        network.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    objective(batch())
    assert len(seen) == 3 and all(torch.equal(each, seen[0]) for each in seen)
    assert not torch.equal(seen[0], batch().views[0])
    assert not any(part.training for part in objective.teachers.modules() if part is not objective.teachers)
    assert not [name for name in ema_tensors(objective) if name.startswith("teachers")]


def of_digits(folder: Path, seed: int = 0, **more: Any) -> Release:
    """A release that knows the digits, and a class more, in another order."""
    names = ["more", *map(str, reversed(range(10)))]
    settings = {"name": "cifar_resnet20.known", "centers": some_centers(64, 11), **more}
    return release_of(folder, trained_encoder(seed=seed), size=8, class_names=names, **settings)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Release:
    centers = Centers(torch.arange(11.0)[:, None].expand(11, 64), torch.zeros(11), torch.arange(11) + 1)
    return of_digits(tmp_path_factory.mktemp("teachers") / "known", centers=centers)


def taught_by(teacher: object) -> Objective:
    r = recipe("classify", override(teacher))
    return build_objective(r, open_dataset(r.data, "train", None))


def test_a_teacher_that_knows_more_is_asked_for_the_classes_of_the_data(known: Release) -> None:
    (asked,) = taught_by(known.path).teachers
    assert asked.weight[:, 0].tolist() == [10 - digit for digit in range(10)]
    std = torch.tensor(recipe("classify").data.std) / torch.tensor(known.preprocess.std)
    torch.testing.assert_close(asked.scale.flatten(), std)


@pytest.mark.parametrize(
    ("teacher", "match"),
    [
        ("nowhere", r'^objective\.distill\.teachers: "nowhere": '),
        ("shipped:cifar_resnet20.moco_v2_ft_digits_lt50", r"moco_v2_ft_digits_lt50 has no centers"),
        ("shipped:cifar_resnet32.paco_cifar100_lt100", r"has classes apple, .* expected also 0, 1, 2"),
        (None, "has centers of cosines or distances"),  # which say no probabilities
    ],
)
def test_what_cannot_teach_is_refused_and_named(teacher: str | None, match: str, tmp_path: Path) -> None:
    cosines = {"recipe_text": "objective: {name: bcl, head: cosine}"}
    with pytest.raises(TrainingError, match=match):
        taught_by(teacher or of_digits(tmp_path / "teacher", **cosines).path)


def test_a_classifier_of_cosines_at_a_scale_teaches_by_its_released_logits(tmp_path: Path) -> None:
    teacher = of_digits(
        tmp_path / "teacher", recipe_text="objective: {name: classify, head: cosine, scale: 30}"
    )
    (asked,) = taught_by(teacher.path).teachers
    assert {*map(tuple, asked.weight.tolist())} < {*map(tuple, teacher.centers.weight.tolist())}


def test_a_run_goes_on_with_the_teachers_it_began_with_and_says_so(known: Release, tmp_path: Path) -> None:
    """They are part of its state, but of the best state so far they are not."""
    folder = Path(shutil.copytree(known.path, tmp_path / "teacher"))
    stopping = "training.early_stopping={validation_fraction: 0.2, metric: accuracy, every: 1, patience: 5}"
    r, run = recipe("classify", override(folder), stopping), RunFolder(tmp_path / "run")
    dataset, no_labels = open_dataset(r.data, "train", None), torch.empty(0)
    began = train(build_objective(r, dataset), dataset, r, run, resume=False)
    before = {"teacher_sha256": [teacher_sha256(known.config)]}
    assert began.objective.facts(no_labels) == before
    state = run.load().state
    assert "teachers.0.weight" in state["objective"]
    assert not [name for name in state["stopping"]["best"]["weights"] if name.startswith("teachers")]
    shutil.rmtree(folder)
    of_digits(folder, seed=9)
    fresh = build_objective(r, dataset)
    assert fresh.facts(no_labels) != before
    again = train(fresh, dataset, r, run, resume=True)
    assert_same_state(began.objective, again.objective)
    assert again.objective.facts(no_labels) == before


@pytest.mark.usefixtures("no_pictures")
def test_a_release_says_who_taught_it_and_keeps_to_it(tmp_path: Path) -> None:
    own, other = shutil.copytree(zoo.open(PACO).path, tmp_path / "paco"), of_digits(tmp_path / "other").path
    changes = [override(own, other), "training.epochs=1", "schedule.warmup_epochs=0"]
    name = "cifar_resnet20.balanced_softmax_digits_lt50"
    taught = zoo.pretrain(name, out=tmp_path / "out", overrides=[*changes, "evaluation=[classifier]"])
    own, other = taught.recipe["objective"]["distill"]["teachers"]
    hashes = [teacher_sha256(zoo.open(each).config) for each in (own, other)]
    assert taught.metrics["training"]["teacher_sha256"] == hashes
    assert f"`{own}`, `{other}`, whose licences also apply." in (taught.path / "README.md").read_text()
    assert "Distilling the Knowledge in a Neural Network" in bibtex("classify", taught.recipe)
    with pytest.raises(ReleaseError, match=r"teachers\.0: found the folder"):  # which nobody else has
        zoo.push(taught, "alice/taught", token="hf_none")
    metrics = json.loads((taught.path / "metrics.json").read_text())
    metrics["training"]["teacher_sha256"][0] = "0" * 64
    (taught.path / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(ReleaseError, match=r"teachers\.0 "):  # other teachers: not the same training
        zoo.reproduce(taught.path, out=tmp_path / "again")


@pytest.mark.parametrize(
    ("licenses", "expected"), [(["mit", "apache-2.0"], "mit"), (["mit", "gpl-3.0"], "other")]
)
def test_a_teachers_licence_stays(known: Release, licenses: list[str], expected: str, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(known.path, tmp_path / license)) for license in licenses]
    teachers = [zoo.open(each).with_license(each.name).path for each in copies]
    assert inherited_license(recipe("classify", override(*teachers))) == expected
