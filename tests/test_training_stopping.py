"""Early stopping: what is put aside, when training ends, what is released, and that it resumes exactly."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo
from tests import test_training
from tests.test_step import stepper_and_batches
from tests.test_training import StopAfter, assert_same_state, run
from zoo.api.facts import training_facts
from zoo.data import ImageDataset, eval_images, open_dataset
from zoo.data.sources import ArrayStore
from zoo.errors import DataError, Interrupted, RecipeError, TrainingError
from zoo.evaluation.classifier import center_logits
from zoo.evaluation.features import extract
from zoo.evaluation.metrics import classification_metrics
from zoo.objectives import Objective
from zoo.ranks import ALONE
from zoo.recipe import Recipe
from zoo.training import RunFolder, Trained, build_objective, train
from zoo.training.stopping import Stopping
from zoo.training.validation import Validation, put_aside

CPU = torch.device("cpu")
# a constant rate on 240 images: the validation loss turns up after a few epochs
OVERFIT = (
    "training.epochs=20",
    "schedule.name=constant",
    "schedule.warmup_epochs=0",
    "objective.loss=cross_entropy",
    "optimizer.lr=0.02",
    "optimizer.weight_decay=0.0",
    "training.threads=1",
)


def recipe(name: str, *overrides: str) -> Recipe:
    """Of a classifier the one whose loss is that of the images as they come, which may be looked at."""
    plain = ("objective.loss=cross_entropy",) if name == "classify" else ()
    return test_training.recipe(name, *plain, *overrides)


def stopping(metric: str = "loss", *, every: int = 1, patience: int = 2, fraction: float = 0.3) -> str:
    return (
        f"training.early_stopping={{validation_fraction: {fraction}, metric: {metric}, every: {every}, "
        f"patience: {patience}}}"
    )


def go(r: Recipe, folder: Path, dataset: ImageDataset | None = None, *, resume: bool = False) -> Trained:
    dataset = dataset or open_dataset(r.data, "train", None)
    return train(build_objective(r, dataset), dataset, r, RunFolder(folder), resume=resume)


def looks(folder: Path) -> list[dict[str, float]]:
    return [row for row in RunFolder(folder).rows() if "validation_loss" in row]


# what is put aside


def test_each_class_gives_its_share_but_never_its_only_image() -> None:
    labels = np.array([0] * 40 + [1] * 10 + [2] * 2 + [3])
    store = ArrayStore(np.zeros((len(labels), 8, 8), np.uint8), "made")
    dataset = ImageDataset(store, labels, list("abcd"))
    r = recipe("classify", stopping(fraction=0.2))
    parts = split_validation(dataset, r)
    assert parts.validation is not None
    assert parts.validation.class_counts.tolist() == [8, 2, 1, 0]
    assert parts.training.class_counts.tolist() == [32, 8, 1, 1]
    names = [[part.name_of(i) for i in range(len(part))] for part in (parts.training, parts.validation)]
    order = {dataset.name_of(i): i for i in range(len(dataset))}
    assert sorted(names[0] + names[1], key=order.__getitem__) == list(order)
    assert all(part == sorted(part, key=order.__getitem__) for part in names)
    again = split_validation(dataset, r).validation
    other = split_validation(dataset, recipe("classify", stopping(fraction=0.2), "training.seed=1")).validation
    assert again is not None and other is not None
    assert again.describe()["sha256"] == parts.validation.describe()["sha256"]
    assert other.describe()["sha256"] != parts.validation.describe()["sha256"]


def test_a_class_of_one_image_each_is_refused() -> None:
    dataset = ImageDataset(ArrayStore(np.zeros((3, 8, 8), np.uint8), "made"), [0, 1, 2], list("abc"))
    with pytest.raises(DataError, match=r"each of the 3 classes has a single training image"):
        split_validation(dataset, recipe("classify", stopping()))


def test_objectives_know_of_the_rest_alone() -> None:
    r = recipe("paco", stopping("accuracy"))
    learned = build_objective(r, open_dataset(r.data, "train", None)).learned
    counts = torch.tensor(split_validation(open_dataset(r.data, "train", None), r).training.class_counts)
    torch.testing.assert_close(learned.log_prior.exp(), counts / counts.sum(), rtol=1e-4, atol=1e-6)


def test_planted_validation_images_are_in_no_batch_and_are_all_that_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are white, the others black."""
    r = recipe("classify", stopping(patience=9), "views.train=[[{op: horizontal_flip}]]")
    real = open_dataset(r.data, "train", None)
    held = split_validation(real, r).validation
    assert held is not None
    white = {held.name_of(i) for i in range(len(held))}
    is_white = np.array([real.name_of(i) in white for i in range(len(real))])
    pixels = np.where(is_white, 255, 0).astype(np.uint8)[:, None, None] * np.ones((1, 8, 8), np.uint8)
    planted = ImageDataset(ArrayStore(pixels, "planted"), real.labels, real.class_names)
    trained_on: list[Tensor] = []
    looked_at: list[Tensor] = []

    class Spy(nn.Module):
        num_features = 64

        def __init__(self, encoder: nn.Module) -> None:
            super().__init__()
            self.inner = encoder

        def forward(self, images: Tensor) -> Tensor:
            (trained_on if self.training else looked_at).append(images.amax(dim=(1, 2, 3)).clone())
            return self.inner(images)

    objective = build_objective(r, planted)
    objective.encoder = Spy(objective.encoder)
    train(objective, planted, r, RunFolder(tmp_path), resume=False)
    assert len(torch.cat(trained_on)) == 2 * (len(real) - len(held))
    assert torch.cat(trained_on).max() < 0 < torch.cat(looked_at).min()
    assert len(torch.cat(looked_at)) == 2 * len(held)


# when it ends, and with what


def test_it_stops_when_it_gets_worse_and_ends_with_the_best_state(tmp_path: Path) -> None:
    r = recipe("classify", *OVERFIT, stopping())
    trained = go(r, tmp_path / "a")
    losses = [row["validation_loss"] for row in looks(tmp_path / "a")]
    best = int(np.argmin(losses)) + 1
    facts = trained.stopping
    assert facts is not None
    assert best < len(losses) == best + 2 == facts["stopped_at_epoch"] < 20
    assert facts["best_epoch"] == best and facts["best_value"] == pytest.approx(min(losses), abs=1e-4)
    dataset = open_dataset(r.data, "train", None)
    parts = split_validation(dataset, r)
    assert parts.validation is not None
    assert facts["validation_images"] == len(parts.validation)
    assert trained.steps * 64 >= trained.images == len(parts.training) * facts["stopped_at_epoch"]
    # the same training of the rest alone, which knows of no validation and ends there
    short = recipe("classify", *OVERFIT, f"training.epochs={best}")
    plain = go(short, tmp_path / "b", parts.training)
    assert_same_state(plain.objective, trained.objective)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "accuracy"])
def test_the_value_is_that_of_the_released_classifier_and_of_equals_the_earlier(
    metric: str, tmp_path: Path
) -> None:
    r = recipe("classify", *OVERFIT, stopping(metric, patience=3))
    trained = go(r, tmp_path)
    values = [row[f"validation_{metric}"] for row in looks(tmp_path)]
    assert trained.stopping is not None
    assert trained.stopping["best_epoch"] == values.index(max(values)) + 1
    held = split_validation(open_dataset(r.data, "train", None), r).validation
    assert held is not None
    images = eval_images(held, r.views.eval, r.data.mean, r.data.std, batch_size=7, device=CPU)
    features, labels = extract(trained.objective.encoder, images, device=CPU)
    centers = trained.objective.centers()
    assert centers is not None
    logits = center_logits(features, centers)
    found = classification_metrics(logits.argmax(dim=1), labels, None, held.class_names)
    assert max(values) == pytest.approx(found[metric])
    row = looks(tmp_path)[values.index(max(values))]
    expected = nn.functional.cross_entropy(logits, labels).item()
    assert row["validation_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("metric", "values", "best", "over"),
    [
        ("accuracy", [50.0, 60.0, 60.0, 60.0], 2, [False, False, False, True]),  # of equals the earlier
        ("accuracy", [50.0, 40.0, 51.0, 30.0, 51.0], 3, [False, False, False, False, True]),
        ("loss", [2.0, 1.0, 1.0, 3.0], 2, [False, False, False, True]),
        ("loss", [math.nan, 4.0, math.nan, math.inf], 2, [False, False, False, True]),
    ],
)
def test_the_best_of_given_values(metric: str, values: list[float], best: int, over: list[bool]) -> None:
    r = recipe("classify", stopping(metric))
    stepper, _ = stepper_and_batches(r, 1)
    script = iter(values)

    class Scripted(Validation):
        def __init__(self) -> None:
            self.images = 1

        def measure(self, objective: Objective) -> dict[str, float]:
            return {metric: next(script)}

    section = r.training.early_stopping
    assert section is not None
    looking = Stopping(section, Scripted(), stepper)
    for look, expected in enumerate(over, 1):
        looking.look(6 * look)
        assert looking.over == expected
    assert looking.best is not None and looking.best.step == 6 * best
    assert looking.facts(6 * len(values))["best_epoch"] == best


def test_it_looks_every_so_many_epochs_and_at_the_end(tmp_path: Path) -> None:
    r = recipe("classify", "training.epochs=5", stopping(every=2, patience=9))
    trained = go(r, tmp_path)
    assert [row["epoch"] for row in looks(tmp_path)] == [2.0, 4.0, 5.0]
    assert trained.stopping is not None and trained.stopping["stopped_at_epoch"] == 5


def test_a_moving_average_is_what_is_looked_at_and_kept(tmp_path: Path) -> None:
    ema = "training.ema={decay: 0.9, warmup: false}"
    r = recipe("classify", *OVERFIT, stopping(patience=3), ema)
    trained = go(r, tmp_path / "a")
    assert trained.stopping is not None
    epochs = trained.stopping["best_epoch"]
    parts = split_validation(open_dataset(r.data, "train", None), r)
    short = recipe("classify", *OVERFIT, f"training.epochs={epochs}", ema)
    assert_same_state(go(short, tmp_path / "b", parts.training).objective, trained.objective)


def test_looking_changes_no_mode_no_weight_and_no_generator(tmp_path: Path) -> None:
    r = recipe("classify", stopping())
    dataset = open_dataset(r.data, "train", None)
    objective = build_objective(r, dataset).train()
    objective.encoder.layer2.eval()  # as somebody may freeze a part
    modes = {name: module.training for name, module in objective.named_modules()}
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    state = torch.get_rng_state()
    held = split_validation(dataset, r).validation
    assert held is not None
    Validation(held, r, CPU, ALONE).measure(objective)
    assert modes == {name: module.training for name, module in objective.named_modules()}
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


# resume


@pytest.mark.parametrize("rows", [2, 5, 13])
def test_a_run_stopped_anywhere_ends_as_one_that_was_not(rows: int, tmp_path: Path) -> None:
    r = recipe("classify", *OVERFIT, stopping(), "training.ema={decay: 0.9, warmup: true}")
    undisturbed = go(r, tmp_path / "a")
    assert len(RunFolder(tmp_path / "a").rows()) >= 15  # three epochs at least
    StopAfter(tmp_path / "b", rows, signal.SIGTERM)
    with pytest.raises(Interrupted):
        go(r, tmp_path / "b")
    for _ in range(2):  # the second finds a finished training
        resumed = go(r, tmp_path / "b", resume=True)
        assert_same_state(undisturbed.objective, resumed.objective)
        assert resumed.stopping == undisturbed.stopping
        assert (resumed.steps, resumed.images) == (undisturbed.steps, undisturbed.images)
        values = [
            [(row["step"], row.get("loss"), row.get("validation_loss")) for row in RunFolder(folder).rows()]
            for folder in (tmp_path / "a", tmp_path / "b")
        ]
        assert values[0] == values[1]


def test_resume_when_the_best_lies_before_the_last_checkpoint(tmp_path: Path) -> None:
    """As after a kill: the last checkpoint is gone, what was found since is found again."""
    r = recipe("classify", *OVERFIT, stopping(), "training.keep_checkpoints=3")
    undisturbed = go(r, tmp_path)
    folder = RunFolder(tmp_path)
    for file in folder.checkpoints()[:2]:  # now the best is in the third from the end
        file.unlink()
    saved = folder.load()
    assert saved is not None and undisturbed.stopping is not None
    assert saved.state["stopping"]["best"]["step"] == saved.step
    resumed = go(r, tmp_path, resume=True)
    assert_same_state(undisturbed.objective, resumed.objective)
    assert resumed.stopping == undisturbed.stopping


def test_the_checkpoint_keeps_of_the_best_state_only_what_is_released(tmp_path: Path) -> None:
    go(recipe("paco", stopping("accuracy")), tmp_path)
    saved = RunFolder(tmp_path).load()
    assert saved is not None
    names = set(saved.state["stopping"]["best"]["weights"])
    assert {"encoder.conv1.weight", "learned.classifier.weight"} <= names
    queue_or_teacher = {
        n for n in saved.state["objective"] if ".queue." in n or ".teacher" in n or "key" in n
    }
    assert queue_or_teacher and not names & queue_or_teacher


# what is refused


def test_objectives_without_a_classifier_are_refused() -> None:
    with pytest.raises(RecipeError, match=r'training\.early_stopping: .* objective "moco" learns none'):
        recipe("moco", stopping())


def test_figures_on_the_trained_state_are_of_the_best_and_of_the_images_learned_from(tmp_path: Path) -> None:
    ema = "training.ema={decay: 0.9, warmup: true}"
    r = recipe("pico", ema)
    dataset = open_dataset(r.data, "train", None)
    trained = go(r, tmp_path / "a", dataset)
    facts = training_facts(r, trained, dataset)
    targets = trained.objective.state_dict()["targets"]
    right = (targets.argmax(dim=1) == torch.tensor(dataset.labels)).double().mean()
    assert facts["disambiguation_accuracy"] == pytest.approx(100 * right.item(), abs=1)
    assert facts["moving_average"] == {"decay": 0.9, "warmup": True}
    r = recipe("paco", stopping("accuracy"), ema)
    dataset = open_dataset(r.data, "train", None)
    facts = training_facts(r, go(r, tmp_path / "b", dataset), dataset)
    assert facts["early_stopping"]["validation_images"] == len(dataset) - len(split_validation(dataset, r).training)
    assert "judged" not in facts["early_stopping"]


@pytest.mark.usefixtures("no_pictures")
def test_a_method_that_changes_the_classifier_afterwards_says_what_was_judged(tmp_path: Path) -> None:
    method = "method={name: tau_normalized, tau: 1.0}"
    overrides = (
        "training.epochs=1",
        "schedule.warmup_epochs=0",
        "evaluation=[]",
        stopping("accuracy"),
        method,
    )
    release = zoo.pretrain("cifar_resnet20.ce_digits_lt50", out=tmp_path / "out", overrides=overrides)
    judged = "the classifier as it was trained, before tau_normalized changed it"
    assert release.metrics["training"]["early_stopping"]["judged"] == judged
    assert f"Judged was {judged}." in " ".join(release.card.split())


def test_early_stopping_is_no_change_that_a_run_may_take_on(tmp_path: Path) -> None:
    run(recipe("classify", stopping()), tmp_path)
    with pytest.raises(TrainingError, match=r"training\.early_stopping\.patience was 2, is 3"):
        run(recipe("classify", stopping(patience=3)), tmp_path, resume=True)


def test_a_checkpoint_with_the_best_state_of_another_network_is_refused(tmp_path: Path) -> None:
    r = recipe("classify", stopping())
    go(r, tmp_path)
    folder = RunFolder(tmp_path)
    saved = folder.load()
    assert saved is not None
    saved.state["stopping"]["best"]["weights"]["classifier.weight"] = torch.zeros(9, 64)
    with folder.locked():
        folder.save(saved)
    with pytest.raises(TrainingError, match="does not fit this recipe: its best state is of other weights"):
        go(r, tmp_path, resume=True)


def test_a_rank_without_an_image_to_look_at_counts_none() -> None:
    r = recipe("classify", stopping())
    nothing = open_dataset(r.data, "train", None).subset([])
    assert list(eval_images(nothing, r.views.eval, r.data.mean, r.data.std, batch_size=7, device=CPU)) == []


# the release


@pytest.mark.usefixtures("no_pictures")
def test_the_release_says_what_was_chosen_on_what(tmp_path: Path) -> None:
    r = Recipe.load(
        "cifar_resnet20.balanced_softmax_digits_lt50",
        [*OVERFIT, stopping(), "training.batch_size=64", "training.device=cpu"],
    )
    release = zoo.pretrain(r, out=tmp_path)
    dataset = open_dataset(r.data, "train", None)
    parts = split_validation(dataset, r)
    facts = release.metrics["training"]["early_stopping"]
    assert parts.validation is not None
    assert facts["validation_fraction"] == 0.3 and facts["validation_images"] == len(parts.validation)
    assert release.metrics["training"]["epochs"] == facts["stopped_at_epoch"] < 20
    assert "put aside from the training images" in facts["chosen_on"]
    expected = f"after epoch {facts['best_epoch']}, chosen by the loss of {len(parts.validation)} images put"
    assert expected in release.card and "These are the weights after the last epoch" not in release.card
    assert release.centers is not None
    assert release.centers.class_counts.tolist() == parts.training.class_counts.tolist()
    # many, medium, few and the probes are of the whole long-tailed set
    entries = json.loads((tmp_path / "metrics.json").read_text())["evaluations"]
    assert {entry["train_set"]["num_images"] for entry in entries} == {len(dataset)}
    again = zoo.evaluate(release, "classifier", save=False)
    assert again["metrics"] == entries[0]["metrics"]
