"""Teachers beside the labels: the equation, who is asked what, what is recorded, and that it teaches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import zoo
from tests import warm
from tests.objective_helpers import COUNTS, INFO, LABELS, config
from tests.release_helpers import release_of, some_centers, trained_encoder
from tests.test_training import assert_same_state, recipe
from zoo import backbones, functional
from zoo.data import open_dataset
from zoo.errors import ReleaseError, TrainingError
from zoo.modules import Centers, Normalization, Teacher
from zoo.objectives import Batch, Classify, Objective
from zoo.release import Release
from zoo.release.card import bibtex
from zoo.release.provenance import teacher_sha256
from zoo.training import RunFolder, build_objective, train
from zoo.training.optim import averaged

PACO = "shipped:cifar_resnet20.paco_digits_lt50"
UNIT = Normalization((0.0,) * 3, (1.0,) * 3)


def distill(*teachers: object, weight: float = 0.9, tau: float = 4.0) -> dict[str, Any]:
    return {"teachers": [str(each) for each in teachers], "weight": weight, "tau": tau}


def override(*teachers: object, weight: float = 0.9) -> str:
    return f"objective.distill={json.dumps(distill(*teachers, weight=weight))}"


def slowly(logits: Tensor, teachers: Tensor, tau: float) -> float:
    """tau^2 times the mean over images of sum_c p_c log(p_c / s_c), of probabilities themselves."""
    p, s = (teachers / tau).softmax(dim=2).mean(dim=0), (logits / tau).softmax(dim=1)
    return tau**2 * float((p * (p / s).log()).sum(dim=1).mean())


@pytest.mark.parametrize(("tau", "teachers"), [(0.5, 1), (1.0, 2), (4.0, 3)])
def test_distillation_is_the_divergence_from_the_teachers_mean(tau: float, teachers: int) -> None:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, 4, generator=g, dtype=torch.float64)
    said = 3 * torch.randn(teachers, 5, 4, generator=g, dtype=torch.float64)
    found = functional.distillation(logits, said, tau=tau)
    assert found.item() == pytest.approx(slowly(logits, said, tau), rel=1e-9)
    assert functional.distillation(logits.bfloat16(), said.bfloat16(), tau=tau).dtype == torch.float32


def teacher(seed: int = 5) -> Teacher:
    encoder, centers = trained_encoder(seed=seed), some_centers(64, len(COUNTS))
    return Teacher(encoder, centers, own=UNIT, given=UNIT, sha256=f"{seed:064x}")


def student(*teachers: Teacher, **changes: Any) -> Classify:
    torch.manual_seed(0)
    section = config("classify", **{"distill": distill(*range(len(teachers))), **changes})
    return Classify(section, backbones.create("cifar_resnet20"), INFO._replace(teachers=teachers))


def batch() -> Batch:
    index = torch.arange(6)
    images = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return Batch((images,), LABELS[index], index, None)


def test_the_loss_has_its_parts_by_weight() -> None:
    """Against the student's own features and the teachers' logits, put together anew in float64."""
    teachers, data = (teacher(5), teacher(6)), batch()
    section = distill("a", "b", weight=0.7, tau=3.0)
    objective = student(*teachers, distill=section, loss="balanced_softmax").eval()
    with torch.no_grad():
        output = objective(data)
        logits = objective.classifier(objective.encoder(data.views[0])).double()
        said = torch.stack([each(data.views[0]) for each in teachers]).double()
    labels = F.cross_entropy(logits + (COUNTS / COUNTS.sum()).double().log(), data.labels)
    taught = slowly(logits, said, 3.0)
    assert output.loss.item() == pytest.approx(0.3 * labels.item() + 0.7 * taught, rel=1e-5)
    assert output.metrics["label_loss"].item() == pytest.approx(labels.item(), rel=1e-5)
    assert output.metrics["distillation_loss"].item() == pytest.approx(taught, rel=1e-4, abs=1e-5)


def test_teachers_are_asked_about_the_mixed_images_that_the_student_sees() -> None:
    seen, asked = list[Tensor](), teacher()
    objective = student(asked, mix={"mixup": 1.0}).train()
    for network in (asked, objective.encoder):
        network.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    objective(batch())
    assert torch.equal(*seen) and not torch.equal(seen[0], batch().views[0])
    assert not any(part.training for part in asked.modules())


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Knows the digits and a class more, in another order."""
    centers = Centers(torch.arange(11.0)[:, None].expand(11, 64), torch.zeros(11), torch.arange(11) + 1)
    return of_digits(tmp_path_factory.mktemp("teachers") / "known", centers=centers)


def of_digits(folder: Path, seed: int = 0, **more: Any) -> Release:
    names = ["more", *map(str, reversed(range(10)))]
    settings = {"name": "cifar_resnet20.known", "centers": some_centers(64, 11), **more}
    return release_of(folder, trained_encoder(seed=seed), size=8, class_names=names, **settings)


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
    ],
)
def test_what_cannot_teach_is_refused_and_named(teacher: str, match: str) -> None:
    with pytest.raises(TrainingError, match=match):
        taught_by(teacher)


def test_centers_that_say_no_probabilities_do_not_teach(tmp_path: Path) -> None:
    made = of_digits(tmp_path / "teacher", recipe_text="objective: {name: bcl, head: cosine}")
    with pytest.raises(TrainingError, match="has centers of cosines or distances"):
        taught_by(made.path)


def test_a_run_goes_on_with_the_teachers_it_began_with_and_says_so(known: Release, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(known.path, tmp_path / "teacher"))
    r, run, facts = recipe("classify", override(folder)), RunFolder(tmp_path / "run"), torch.empty(0)
    dataset = open_dataset(r.data, "train", None)
    began = train(build_objective(r, dataset), dataset, r, run, resume=False)
    before = {"teacher_sha256": [teacher_sha256(known.config)]}
    assert began.objective.facts(facts) == before
    shutil.rmtree(folder)
    of_digits(folder, seed=9)
    fresh = build_objective(r, dataset)
    assert fresh.facts(facts) != before
    again = train(fresh, dataset, r, run, resume=True)
    assert_same_state(began.objective, again.objective)
    assert again.objective.facts(facts) == before


def test_teachers_are_no_part_of_the_average_or_the_best_state(tmp_path: Path) -> None:
    assert not [name for name in averaged(student(teacher())) if name.startswith("teachers")]
    stopping = "training.early_stopping={validation_fraction: 0.2, metric: accuracy, every: 1, patience: 5}"
    r, run = recipe("classify", override(PACO), stopping), RunFolder(tmp_path)
    dataset = open_dataset(r.data, "train", None)
    train(build_objective(r, dataset), dataset, r, run, resume=False)
    state = run.load().state
    assert "teachers.0.weight" in state["objective"]
    assert not [name for name in state["stopping"]["best"]["weights"] if name.startswith("teachers")]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A student of a shipped teacher that lies in a folder, and of another; read only."""
    folder = tmp_path_factory.mktemp("taught")
    own, short = shutil.copytree(zoo.open(PACO).path, folder / "paco"), "training.epochs=1"
    other = of_digits(folder / "other")
    overrides = [override(own, other.path), short, "schedule.warmup_epochs=0", "evaluation=[classifier]"]
    name = "cifar_resnet20.balanced_softmax_digits_lt50"
    return zoo.pretrain(name, out=folder / "out", overrides=overrides)


def test_a_release_says_who_taught_it(taught: Release) -> None:
    own, other = taught.recipe["objective"]["distill"]["teachers"]
    hashes = [teacher_sha256(zoo.open(name).config) for name in (own, other)]
    assert taught.metrics["training"]["teacher_sha256"] == hashes
    card = (taught.path / "README.md").read_text()
    assert f"`{own}`, `{other}`, whose licences also apply." in card
    assert "Distilling the Knowledge in a Neural Network" in bibtex("classify", taught.recipe)
    shown = warm.zoo("show", taught.path).stdout
    assert own in shown and other in shown


def test_a_teacher_s_folder_is_not_published(taught: Release, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(taught.path, tmp_path / "taught"))
    with pytest.raises(ReleaseError, match=r"teachers\.0: found the folder"):
        zoo.push(folder, "alice/taught", token="hf_none")


def test_other_teachers_are_not_the_same_training(taught: Release, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(taught.path, tmp_path / "taught"))
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["training"]["teacher_sha256"][0] = "0" * 64
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(ReleaseError, match=r"teachers\.0 "):
        zoo.reproduce(folder, out=tmp_path / "again")


@pytest.mark.parametrize(
    ("licenses", "expected"), [(["mit", "apache-2.0"], "mit"), (["mit", "gpl-3.0"], "other")]
)
def test_a_student_keeps_its_teachers_licence(
    known: Release, licenses: list[str], expected: str, tmp_path: Path
) -> None:
    from zoo.report.finish import inherited

    copies = [Path(shutil.copytree(known.path, tmp_path / license)) for license in licenses]
    teachers = [zoo.open(each).with_license(each.name).path for each in copies]
    assert inherited(recipe("classify", override(*teachers))) == expected
