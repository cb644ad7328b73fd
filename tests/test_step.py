"""One step: clipping and schedule, compilation, no waiting, metrics, the average of the weights."""

import math
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from timm.utils import ModelEmaV3
from torch import nn

from tests.objective_helpers import SETTINGS, VIT
from tests.test_streaming import Watch
from tests.test_training import recipe, run
from zoo.data import Batch, open_dataset
from zoo.errors import RecipeError, TrainingError
from zoo.modules.ranks import Ranks
from zoo.objectives import Output
from zoo.recipe import Recipe
from zoo.recipe.sections import ScheduleSection
from zoo.training import RunFolder, build_objective
from zoo.training.build import open_loader, require_batches
from zoo.training.logging import Metrics
from zoo.training.optim import build_schedule
from zoo.training.step import Stepper

CPU = torch.device("cpu")


def stepper_and_batches(r: Recipe, steps: int) -> tuple[Stepper, list[Batch]]:
    dataset = open_dataset(r.data, "train", None)
    loader = open_loader(dataset, r, CPU)
    objective = build_objective(r, dataset).train()
    return Stepper(objective, r, loader.steps_per_epoch, CPU), list(loader.stream(0, steps))


def distance(*changes: str) -> float:
    """How far two updates of a classifier move its weights."""
    stepper, batches = stepper_and_batches(recipe("classify", *changes), 2)
    before = [p.detach().clone() for p in stepper.parameters]
    for step, each in enumerate(batches):
        stepper(step, each)
    moves = [a.detach() - b for a, b in zip(stepper.parameters, before, strict=True)]
    return float(torch.nn.utils.get_total_norm(moves))


def test_step_uses_clipping_momentum_and_the_schedule_from_its_first_update() -> None:
    plain = (
        "optimizer.weight_decay=0.0",
        "schedule.name=constant",
        "schedule.warmup_epochs=0",
        "optimizer.lr=0.1",
    )
    # clipped to norm c, two steps of SGD without momentum move at most 2 * lr * c
    clipped = distance(*plain, "optimizer.momentum=0.0", "training.clip_grad=0.001")
    assert 0 < clipped <= 2 * 0.1 * 0.001 * 1.001
    assert distance(*plain, "optimizer.momentum=0.9") > distance(*plain, "optimizer.momentum=0.0")
    # a warm-up from 0 over one epoch of 6 steps: updates 0 and 1 have 0/6 and 1/6 of the rate
    warm = (
        "schedule.warmup_epochs=1",
        "schedule.warmup_lr=0.0",
        "optimizer.momentum=0.0",
        "training.clip_grad=0.001",
    )
    warmed = distance(*plain[:2], "optimizer.lr=0.1", *warm)
    assert warmed == pytest.approx(0.1 / 6 * 0.001, rel=0.05)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_milestone_counts_epochs_from_the_beginning_with_a_warm_up_too(prefix: bool) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    section = ScheduleSection(name="multistep", milestones=[4], warmup_epochs=2, warmup_prefix=prefix)
    schedule = build_schedule(optimizer, section, epochs=6, steps_per_epoch=5)
    rates = []
    for step in range(30):
        schedule.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:10] == pytest.approx([step / 10 for step in range(10)])
    assert rates[10:20] == [1.0] * 10 and rates[20:] == pytest.approx([0.1] * 10)


@pytest.mark.parametrize(
    ("images", "size", "ranks", "message"),
    [
        (340, 34, 1, None),
        (341, 34, 1, r"training\.batch_size: found 34, .* at least two"),
        (344, 64, 2, None),
        (345, 64, 2, r"training\.batch_size: found 64.* the 2 ranks divide"),
    ],
)
def test_batches_that_do_not_fit_are_refused(images: int, size: int, ranks: int, message: str | None) -> None:
    r = recipe("classify", f"training.batch_size={size}", "training.drop_last=false")
    objective, several = build_objective(r, open_dataset(r.data, "train", None)), Ranks()
    several.size = ranks
    with pytest.raises(RecipeError, match=message) if message else nullcontext():
        require_batches(objective, images, r, several)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_encoders_train_alike_and_are_themselves_again_afterwards(tmp_path: Path) -> None:
    short = (*VIT, "training.drop_last=true", "training.batch_size=128", "training.observe_every=2")
    short = (*short, "objective.head_batchnorm=false", "objective.key_groups=1")
    plain = run(recipe("moco", *short), tmp_path / "a")
    fast = run(recipe("moco", *short, "training.compile=default"), tmp_path / "b")
    assert not any("forward" in vars(module) for module in fast.modules())
    assert list(fast.state_dict()) == list(plain.state_dict())
    rows = [RunFolder(tmp_path / name).rows() for name in "ab"]
    for name in ("loss", "gradient_norm", "feature_gradient_many", "negative_variance_ft", "uniformity"):
        of_both = [[row[name] for row in each if name in row] for each in rows]
        assert of_both[0] and of_both[0] == pytest.approx(of_both[1], rel=1e-2 if "grad" in name else 1e-3)
    classes = [RunFolder(tmp_path / name).class_rows() for name in "ab"]
    assert [row["images"] for row in classes[0]] == [row["images"] for row in classes[1]] and classes[0]


@pytest.mark.parametrize("kind", SETTINGS)
def test_no_step_waits_for_the_device_nor_an_observed_one(kind: str) -> None:
    stepper, batches = stepper_and_batches(recipe(kind, "training.epochs=3", "training.observe_every=3"), 8)
    metrics = Metrics()
    for step, each in enumerate(batches):  # FT and PiCO's second phase are in
        # the first makes the optimizer's state
        with Watch("equal", "is_nonzero", "lift_fresh") if step else nullcontext():
            output = stepper(step, each)
            metrics.add(output, len(each.index))
            metrics.close({"step": step})
        assert output.observed is None  # nothing keeps the graph
        without = [n for n, p in stepper.objective.named_parameters() if p.requires_grad and p.grad is None]
        assert not without  # ranks on GPUs would wait for them


@pytest.mark.parametrize("name", ["loss", "step", "uniformity"])
def test_a_metric_cannot_take_the_name_of_a_recorded_value(name: str) -> None:
    stepper, batches = stepper_and_batches(recipe("simclr", "training.observe_every=1"), 8)
    forward = stepper.objective.forward

    def named(batch: Batch) -> Output:
        output = forward(batch)
        return output._replace(metrics={name: output.loss.detach()})

    stepper.objective.forward = named  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match=f"metrics: zoo records {name} itself"):
        stepper(0, next(iter(batches)))


def test_means_leave_out_what_is_not_known_yet_but_show_a_bad_loss() -> None:
    metrics = Metrics()
    nan = torch.tensor(float("nan"))
    metrics.add(Output(torch.tensor(1.0), {"score": nan}), 2)
    metrics.add(Output(torch.tensor(3.0), {"score": torch.tensor(5.0), "late": torch.tensor(1.0)}), 2)
    metrics.close({"step": 2})
    [row] = metrics.rows(wait=True)
    assert (row["loss"], row["score"], row["late"], row["step"]) == (2.0, 5.0, 1.0, 2)
    assert row["images_per_second"] > 0
    metrics.add(Output(nan, {}), 2)
    metrics.close({"step": 3})
    [row] = metrics.rows(wait=True)
    assert math.isnan(row["loss"])


EMA = "training.ema={decay: 0.8, warmup: false}"
WARM = "training.ema={decay: 0.8, warmup: true}"
STEPS = 12


@pytest.mark.parametrize(
    ("kind", "section"),
    [("classify", EMA), ("classify", WARM), ("gpaco", WARM), ("pico", EMA), ("paco", EMA)],
)
def test_average_is_timms_bit_for_bit_but_for_what_has_a_rule_of_its_own(kind: str, section: str) -> None:
    stepper, batches = stepper_and_batches(recipe(kind, section), STEPS)
    objective = stepper.objective
    timm_average = ModelEmaV3(objective, decay=0.8, use_warmup=section == WARM)
    for step, batch in enumerate(batches):
        stepper(step, batch)
        timm_average.update(objective, step=step + 1)
    raw = {name: value.clone() for name, value in objective.state_dict().items()}
    with stepper.ema.applied():
        inside = {name: value.clone() for name, value in objective.state_dict().items()}
    kinds = {name: type(module).__name__ for name, module in objective.named_modules()}
    apart = tuple(f"{name}." for name, kind in kinds.items() if kind in ("MomentumEncoder", "KeyQueue"))
    learned_otherwise = {"targets", "prototypes", "class_counts", "log_prior"}
    for name, value in timm_average.module.state_dict().items():
        own = name.startswith(apart) or name in learned_otherwise
        assert torch.equal(inside[name], raw[name] if own else value), name
        assert torch.equal(objective.state_dict()[name], raw[name]), name  # after the block as before it
    moved = [name for name in raw if not torch.equal(raw[name], inside[name])]
    assert len(moved) > 50  # weights, biases and both running statistics of every layer


def test_the_training_takes_no_notice_of_its_average(tmp_path: Path) -> None:
    plain, averaged = (
        run(recipe("paco"), tmp_path / "plain"),
        run(recipe("paco", WARM), tmp_path / "averaged"),
    )
    saved = RunFolder(tmp_path / "averaged").load().state["objective"]
    assert all(torch.equal(saved[name], value) for name, value in plain.state_dict().items())
    assert not torch.equal(averaged.encoder.conv1.weight, plain.encoder.conv1.weight)


def test_an_average_longer_than_the_training_is_refused_with_the_share_of_its_start() -> None:
    """0.999^11: what the weights after the first of 12 steps would be of what is released."""
    with pytest.raises(RecipeError, match=r"training\.ema: .* all 12 steps is 98\.9%"):
        stepper_and_batches(recipe("classify", "training.ema={decay: 0.999, warmup: false}"), 1)
    stepper_and_batches(recipe("classify", "training.ema={decay: 0.999, warmup: true}"), 1)
