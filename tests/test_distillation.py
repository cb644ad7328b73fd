"""Teachers beside the labels: the equation, who is asked what, what is recorded, and that it teaches."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import zoo
from tests import warm
from tests.objective_helpers import COUNTS, INFO, LABELS, config, eval_batches
from tests.release_helpers import release_of, some_centers, trained_encoder
from tests.test_training import assert_same_state, recipe
from zoo import backbones, functional
from zoo.data import open_dataset
from zoo.errors import RecipeError, ReleaseError, TrainingError
from zoo.modules import Centers, Normalization, Teacher
from zoo.objectives import Batch, Classify
from zoo.release import Release
from zoo.release.card import bibtex
from zoo.release.provenance import teacher_sha256
from zoo.training import RunFolder, build_objective, train
from zoo.training.optim import averaged
from zoo.training.precision import encoders

PACO = "shipped:cifar_resnet20.paco_digits_lt50"
UNIT = Normalization((0.0,) * 3, (1.0,) * 3)


def distill(*teachers: object, weight: float = 0.9, tau: float = 4.0, **more: Any) -> dict[str, Any]:
    return {"teachers": [str(each) for each in teachers], "weight": weight, "tau": tau, **more}


def override(*teachers: object, **changes: Any) -> str:
    return f"objective.distill={json.dumps(distill(*teachers, **changes))}"


# --- the equation ---


def slowly(logits: Tensor, teachers: Tensor, tau: float) -> float:
    """tau^2 times the mean over images of sum_c p_c log(p_c / s_c), number by number."""

    def softmax(row: list[float]) -> list[float]:
        powers = [math.exp(x / tau) for x in row]
        return [each / sum(powers) for each in powers]

    total = 0.0
    for i, row in enumerate(logits.tolist()):
        said = [softmax(teacher[i]) for teacher in teachers.tolist()]
        p = [sum(column) / len(said) for column in zip(*said, strict=True)]
        total += sum(a * math.log(a / b) for a, b in zip(p, softmax(row), strict=True))
    return tau**2 * total / len(logits)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    tau=st.floats(0.5, 8),
    n=st.integers(1, 5),
    c=st.integers(2, 6),
    t=st.integers(1, 3),
)
def test_distillation_is_the_divergence_from_the_teachers_mean(
    seed: int, tau: float, n: int, c: int, t: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, c, generator=g, dtype=torch.float64)
    teachers = 3 * torch.randn(t, n, c, generator=g, dtype=torch.float64)
    found = functional.distillation(logits, teachers, tau=tau)
    assert found.item() == pytest.approx(slowly(logits, teachers, tau), rel=1e-9, abs=1e-12)
    half = functional.distillation(logits.bfloat16(), teachers.bfloat16(), tau=tau)
    assert half.dtype == torch.float32


# --- who is asked what ---


def teacher(seed: int = 5) -> Teacher:
    encoder, centers = trained_encoder(seed=seed), some_centers(64, len(COUNTS))
    return Teacher(encoder, centers, own=UNIT, given=UNIT, sha256=f"{seed:064x}")


def student(*teachers: Teacher, **changes: Any) -> Classify:
    torch.manual_seed(0)
    names = [f"teacher {i}" for i in range(len(teachers))]
    section = config("classify", **{"distill": distill(*names), **changes})
    return Classify(section, backbones.create("cifar_resnet20"), INFO._replace(teachers=teachers))


def batch() -> Batch:
    g = torch.Generator().manual_seed(0)
    index = torch.arange(6)
    return Batch((torch.randn(6, 3, 8, 8, generator=g),), LABELS[index], index, None)


@pytest.mark.parametrize("adjustment", [0.0, 1.0, -0.5])
def test_the_loss_has_its_parts_by_weight(adjustment: float) -> None:
    """Against the student's own features and the teachers' logits, put together anew in float64."""
    teachers = (teacher(5), teacher(6))
    section = distill("a", "b", weight=0.7, tau=3.0, adjustment=adjustment)
    objective = student(*teachers, distill=section, loss="balanced_softmax").eval()
    data = batch()
    with torch.no_grad():
        output = objective(data)
        features = objective.encoder(data.views[0])
        logits = objective.classifier(features).double()
        said = torch.stack([each(data.views[0]) for each in teachers]).double()
    prior = (COUNTS / COUNTS.sum()).double().log()
    labels = F.cross_entropy(logits + prior, data.labels)
    taught = slowly(logits, said - adjustment * prior, 3.0)
    assert output.loss.item() == pytest.approx(0.3 * labels.item() + 0.7 * taught, rel=1e-5)
    assert output.metrics["label_loss"].item() == pytest.approx(labels.item(), rel=1e-5)
    assert output.metrics["distillation_loss"].item() == pytest.approx(taught, rel=1e-4, abs=1e-5)


def test_teachers_are_asked_about_mixed_images() -> None:
    seen = list[Tensor]()
    asked = teacher()
    asked.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    mixed = {"mixup": 1.0, "cutmix": 0.0, "probability": 1.0, "switch_probability": 0.0, "mode": "batch"}
    objective = student(asked, mix=mixed).train()
    torch.manual_seed(1)
    objective(batch())
    assert not torch.equal(seen[0], batch().views[0])
    objective.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    objective(batch())
    assert torch.equal(*seen[1:]), "student and teacher see the same"


# --- which teachers a recipe gets ---


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Knows the digits and a class more, in another order."""
    names = ["more", *map(str, reversed(range(10)))]
    centers = Centers(torch.arange(11.0)[:, None].expand(11, 64), torch.zeros(11), torch.arange(11) + 1)
    folder = tmp_path_factory.mktemp("teachers") / "known"
    encoder = trained_encoder()
    return release_of(
        folder, encoder, name="cifar_resnet20.known", size=8, class_names=names, centers=centers
    )


def test_a_teacher_that_knows_more_is_asked_for_the_classes_of_the_data(known: Release) -> None:
    r = recipe("classify", override(known.path))
    objective = build_objective(r, open_dataset(r.data, "train", None))
    (asked,) = objective.teachers
    assert asked.weight[:, 0].tolist() == [10 - digit for digit in range(10)]
    std = torch.tensor(r.data.std) / torch.tensor(known.preprocess.std)
    torch.testing.assert_close(asked.scale.flatten(), std)


@pytest.mark.parametrize(
    ("teachers", "match"),
    [
        (["nowhere"], r'^objective\.distill\.teachers: "nowhere": .*'),
        (["shipped:cifar_resnet20.moco_v2_ft_digits_lt50"], r"moco_v2_ft_digits_lt50 has no centers"),
        (
            ["shipped:cifar_resnet32.paco_cifar100_lt100"],
            r"has classes apple, .* \(100\), expected also 0, 1, 2 \.\.\. \(10\)",
        ),
    ],
)
def test_what_cannot_teach_is_refused_and_named(teachers: list[str], match: str) -> None:
    r = recipe("classify", override(*teachers))
    with pytest.raises(TrainingError, match=match):
        build_objective(r, open_dataset(r.data, "train", None))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("objective: {name: bcl, head: cosine}", "centers of cosines or distances"),
        ("method: {name: ldam_drw}", "centers of cosines or distances"),
        ("method: {name: nearest_center, similarity: cosine}", "centers of cosines or distances"),
    ],
)
def test_centers_that_say_no_probabilities_do_not_teach(
    text: str, found: str, known: Release, tmp_path: Path
) -> None:
    made = release_of(
        tmp_path / "teacher",
        trained_encoder(),
        size=8,
        class_names=known.class_names,
        centers=known.centers,
        recipe_text=text,
    )
    r = recipe("classify", override(made.path))
    with pytest.raises(TrainingError, match=f"has {found}, expected centers of linear logits"):
        build_objective(r, open_dataset(r.data, "train", None))


def test_releases_of_one_encoder_with_other_centers_are_other_teachers(known: Release) -> None:
    config = known.config
    other = {**config, "zoo": {**config["zoo"], "centers_sha256": "0" * 64}}
    darker = {**config, "pretrained_cfg": {**config["pretrained_cfg"], "mean": [0.0, 0.0, 0.0]}}
    assert len({teacher_sha256(each) for each in (config, other, darker)}) == 3


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ([override()], r"objective\.distill\.teachers.*at least 1 item"),
        ([override(PACO, weight=0.0)], r"objective\.distill\.weight"),
        ([override(PACO), "objective.head=cosine", "objective.loss={name: ldam}"], r'distill: .*"ldam"'),
        (
            [override(PACO), "objective.loss=cross_entropy", "method={name: ldam_drw}"],
            r'objective\.distill: found "a section", expected null for method "ldam_drw"',
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: list[str], match: str) -> None:
    with pytest.raises(RecipeError, match=match):
        recipe("classify", *changes)


def test_a_run_goes_on_with_the_teachers_it_began_with_and_says_so(known: Release, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(known.path, tmp_path / "teacher"))
    r = recipe("classify", override(folder))
    dataset = open_dataset(r.data, "train", None)
    began = train(build_objective(r, dataset), dataset, r, RunFolder(tmp_path / "run"), resume=False)
    before = teacher_sha256(known.config)
    assert began.objective.facts(torch.empty(0)) == {"teacher_sha256": [before]}
    shutil.rmtree(folder)
    release_of(
        folder,
        trained_encoder(seed=9),
        name="cifar_resnet20.known",
        size=8,
        class_names=known.class_names,
        centers=some_centers(64, 11),
    )
    fresh = build_objective(r, dataset)
    assert fresh.facts(torch.empty(0)) != {"teacher_sha256": [before]}
    again = train(fresh, dataset, r, RunFolder(tmp_path / "run"), resume=True)
    assert_same_state(began.objective, again.objective)
    assert again.objective.facts(torch.empty(0)) == {"teacher_sha256": [before]}


def test_what_is_kept_averaged_compiled_and_timed_of_a_student(tmp_path: Path) -> None:
    """Teachers are no part of the best state or the average; they take images."""
    asked = teacher()
    objective = student(asked)
    assert not [name for name in averaged(objective) if name.startswith("teachers")]
    assert encoders(objective) == [objective.encoder, asked.encoder]
    stopping = "training.early_stopping={validation_fraction: 0.2, metric: accuracy, every: 1, patience: 5}"
    r = recipe("classify", override(PACO), stopping, "training.ema={decay: 0.9, warmup: true}")
    dataset = open_dataset(r.data, "train", None)
    run = RunFolder(tmp_path)
    train(build_objective(r, dataset), dataset, r, run, resume=False)
    state = run.load().state
    assert "teachers.0.weight" in state["objective"]
    assert not [name for name in state["stopping"]["best"]["weights"] if name.startswith("teachers")]


# --- it teaches ---


def test_a_student_learns_digits_from_its_teacher_alone(tmp_path: Path) -> None:
    """With all of the weight on the teacher labels play no part: they are all wrong here."""
    r = recipe(
        "classify",
        override(PACO, weight=1.0),
        "data.long_tail=null",
        "training.epochs=12",
        "optimizer.lr=0.05",
        "schedule.name=cosine",
        "schedule.milestones=[]",
    )
    dataset = open_dataset(r.data, "train", None)
    dataset.labels = (dataset.labels + 1) % 10
    objective = build_objective(r, dataset)
    trained = train(objective, dataset, r, RunFolder(tmp_path), resume=False).objective
    test = open_dataset(r.data, "test", None)
    found = _accuracy(nn.Sequential(trained.encoder, trained.classifier), r, test)
    assert found > 75, "chance is 10, and 0 is what the labels teach"


def _accuracy(model: nn.Module, r: Any, dataset: Any) -> float:
    hits = 0
    model.eval()
    with torch.no_grad():
        for images, labels in eval_batches(dataset, r, 256):
            hits += int((model(images).argmax(dim=1) == labels).sum())
    return 100 * hits / len(dataset)


# --- what is recorded, published and repeated ---


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A student of a shipped teacher that lies in a folder, and of another; read only."""
    folder = tmp_path_factory.mktemp("taught")
    own = shutil.copytree(zoo.open(PACO).path, folder / "paco")
    other = zoo.pretrain(
        "cifar_resnet20.ce_digits_lt50",
        out=folder / "ce",
        overrides=["training.epochs=1", "schedule.warmup_epochs=0", "evaluation=[]"],
    )
    overrides = [
        override(own, other.path),
        "training.epochs=1",
        "schedule.warmup_epochs=0",
        "evaluation=[{protocol: classifier}]",
    ]
    return zoo.pretrain(
        "cifar_resnet20.balanced_softmax_digits_lt50", out=folder / "out", overrides=overrides
    )


def teachers_in(release: Release) -> list[str]:
    found: list[str] = release.recipe["objective"]["distill"]["teachers"]
    return found


def test_a_release_says_who_taught_it(taught: Release) -> None:
    assert taught.name == "cifar_resnet20.balanced_softmax_digits_lt50_changed"
    configs = [zoo.open(name).config for name in teachers_in(taught)]
    assert taught.metrics["training"]["teacher_sha256"] == [teacher_sha256(config) for config in configs]
    own, other = teachers_in(taught)
    card = (taught.path / "README.md").read_text()
    assert f"They were distilled from `{own}`, `{other}`, whose licences also apply." in card
    assert "Distilling the Knowledge in a Neural Network" in bibtex("classify", taught.recipe)
    shown = warm.zoo("show", taught.path).stdout
    assert f"teachers: {own}, {other}" in " ".join(shown.split())


def test_a_teacher_s_folder_is_not_published(taught: Release) -> None:
    with pytest.raises(ReleaseError, match=rf'teachers\.0 is the folder "{teachers_in(taught)[0]}"'):
        zoo.push(taught, "alice/taught", token="hf_none")


@pytest.mark.parametrize(
    ("recorded", "match"),
    [
        (["0" * 64] * 2, r'objective\.distill\.teachers\.\d ".*": found weights .*, expected 000'),
        (["0" * 64], r"teacher_sha256: found .*, expected one of each of the 2 teachers"),
        ("0" * 64, r"teacher_sha256: found .*, expected one of each of the 2 teachers"),
    ],
)
def test_other_teachers_are_not_the_same_training(
    recorded: object, match: str, taught: Release, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(taught.path, tmp_path / "taught"))
    metrics = json.loads((folder / "metrics.json").read_text())
    metrics["training"]["teacher_sha256"] = recorded
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with pytest.raises(ReleaseError, match=match):
        zoo.reproduce(folder, out=tmp_path / "again")


@pytest.mark.parametrize(
    ("licenses", "expected"),
    [(["mit"], "mit"), (["mit", "apache-2.0"], "mit"), (["mit", "gpl-3.0"], "other")],
)
def test_a_student_keeps_its_teachers_licence(
    known: Release, licenses: list[str], expected: str, tmp_path: Path
) -> None:
    from zoo.pretraining import inherited

    teachers = []
    for i, license in enumerate(licenses):
        copy = Path(shutil.copytree(known.path, tmp_path / f"teacher {i}"))
        teachers.append(zoo.open(copy).with_license(license).path)
    assert inherited(recipe("classify", override(*teachers))) == expected


def test_a_second_stage_learns_from_labels_alone() -> None:
    from zoo.training.stages import stages

    crt = "method={name: crt, epochs: 1, lr: 0.1}"
    first, second = stages(recipe("classify", override(PACO), "objective.loss=cross_entropy", crt))
    assert first.objective.distill is not None and second.objective.distill is None
