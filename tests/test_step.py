"""What makes a step cheaper must not change what it does: parts, checkpointing, compilation."""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from tests.objective_helpers import SETTINGS, batch
from tests.test_training import RECIPES, recipe, run
from zoo.cli.app import app
from zoo.data import Batch, open_dataset
from zoo.errors import RecipeError, TrainingError
from zoo.modules import KeyQueue
from zoo.objectives import Output
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, profile
from zoo.training.build import open_loader, require_batches
from zoo.training.logging import Metrics
from zoo.training.precision import compiled
from zoo.training.step import Stepper, joined, split

CPU = torch.device("cpu")
CONSTANT = {
    "moco": ("objective.feature_transform.start_epoch=1",),
    "moco_v3": ("objective.momentum=0.99",),
    "pico": ("objective.target_momentum=0.9",),
}
"""No momentum changes with the step."""
NO_FT = "objective.feature_transform=null"  # draws other coefficients for other batches


def stepper_and_batches(
    r: Recipe, steps: int, dtype: torch.dtype = torch.float32
) -> tuple[Stepper, list[Batch]]:
    dataset = open_dataset(r.data, "train", None)
    loader = open_loader(dataset, r, CPU)
    objective = build_objective(r, dataset).train().to(dtype)
    stepper = Stepper(objective, r, loader.steps_per_epoch, CPU)
    batches = loader.stream(0, steps)
    return stepper, [each._replace(views=tuple(view.to(dtype) for view in each.views)) for each in batches]


def distance(*changes: str) -> float:
    """How far two updates of a classifier move its weights."""
    stepper, batches = stepper_and_batches(recipe("classify", *changes), 2)
    before = [p.detach().clone() for p in stepper.parameters]
    for step, each in enumerate(batches):
        stepper(step, each)
    pairs = zip(stepper.parameters, before, strict=True)
    return math.sqrt(sum(float((a.detach() - b).square().sum()) for a, b in pairs))


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


@pytest.mark.parametrize("part", ["update", "optimizer"])
def test_the_profile_charges_time_to_the_part_that_takes_it(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = {"update": (KeyQueue, "enqueue"), "optimizer": (torch.optim.SGD, "step")}[part]
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **given: (time.sleep(0.2), real(*args, **given))[1])
    monkeypatch.setattr(profile, "STEPS", 2)
    r = recipe("paco")
    times = profile.step_times(r, open_dataset(r.data, "train", None))
    assert list(times) == ["input", "forward", "backward", "optimizer", "update", "step"]
    assert 0.2 <= times[part] <= times["step"]


def test_the_command_prints_the_profile_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profile, "STEPS", 1)
    done = CliRunner().invoke(app, ["pretrain", RECIPES["classify"], "--profile"])
    assert done.exit_code == 0, done.output
    assert re.search(r"backward +[\d.,]+ ms +[\d.]+%", done.output)
    assert not [*tmp_path.iterdir()]


# --- batches of a few images


@pytest.mark.parametrize(
    ("images", "warned"), [(344, True), (4, True), (340, False), (339, False), (341, None)]
)  # 344 = 10 x 34 + 4
def test_batches_of_a_few_images_are_warned_of_and_one_image_is_refused(
    images: int, warned: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    r = recipe("classify", "training.batch_size=34", "training.drop_last=false")
    objective = build_objective(r, open_dataset(r.data, "train", None)).train()
    if warned is None:
        with pytest.raises(RecipeError, match=r"training\.batch_size: found 34, .* at least two"):
            require_batches(objective, images, r)
        return
    with caplog.at_level(logging.WARNING, "zoo.training"):
        require_batches(objective, images, r)
    assert len(caplog.records) == warned


# --- parts of a batch


def test_parts_are_the_batch_cut_in_order_and_never_a_single_image() -> None:
    whole = batch(size=7)
    parts = split(whole, 3)
    assert [len(part.index) for part in parts] == [3, 2, 2]
    for field in ("labels", "index", "candidates"):
        assert torch.equal(torch.cat([getattr(part, field) for part in parts]), getattr(whole, field))
    for view in range(2):
        assert torch.equal(torch.cat([part.views[view] for part in parts]), whole.views[view])
    assert [len(part.index) for part in split(whole, 7)] == [3, 2, 2]


def test_joined_outputs_are_weighted_means_with_rows_in_order() -> None:
    def output(loss: float, rows: list[float]) -> Output:
        return Output(torch.tensor(loss), {"a": torch.tensor(2 * loss)}, torch.tensor(rows))

    found = joined([output(1.0, [1, 2, 3]), output(4.0, [4])], [0.75, 0.25])
    assert (found.loss.item(), found.metrics["a"].item()) == (1.75, 3.5)
    assert found.carry.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("classify", ()),
        ("moco", ("objective.head_batchnorm=false", "objective.key_groups=1", NO_FT)),
    ],
)
def test_parts_of_a_batch_make_the_update_of_the_whole(kind: str, changes: tuple[str, ...]) -> None:
    """Exact where images do not meet: without BatchNorm, and with negatives from the queue alone."""
    without_batchnorm = (
        *("name=test_vit.x", "backbone.arch=test_vit", "backbone.args={img_size: 32, patch_size: 8}"),
        *changes,
    )
    states = []
    for accumulate in (1, 4):
        r = recipe(kind, *without_batchnorm, f"training.accumulate={accumulate}", "schedule.warmup_epochs=0")
        stepper, batches = stepper_and_batches(r, 6)  # the sixth has 24 images, not 64
        batches.append(split(batches[0], 3)[0])  # 22 images: parts of 6, 6, 5, 5, which count by their images
        losses = [stepper(step, each).loss.item() for step, each in enumerate(batches)]
        states.append((losses, stepper.objective.state_dict()))
    (losses, one), (losses_4, four) = states
    assert losses == pytest.approx(losses_4, rel=1e-4)
    for name, value in one.items():
        torch.testing.assert_close(value, four[name], atol=2e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.accumulate=3", r"training\.accumulate: found 3, expected a divisor of .*\(64\)"),
        ("objective.key_groups=16", r"objective\.key_groups: found 16, expected at most 8"),
        (
            "training.compile=default",
            "checkpoint_activations: found true, expected false with training.compile",
        ),
        ("training.compile=true", "training.compile.: found True .*reduce-overhead"),
        ("training.cuda_graph=true", r"training\.cuda_graph"),
    ],
)
def test_impossible_numerics_are_refused(override: str, expected: str) -> None:
    with pytest.raises(RecipeError, match=expected):
        recipe("moco", "training.accumulate=4", "training.checkpoint_activations=true", override)


# --- checkpointed activations


@pytest.mark.parametrize("arch", ["cifar_resnet20", "resnet18_cifar", "test_vit"])
def test_checkpointed_activations_give_the_same_training_statistics_included(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr(
        torch.utils.checkpoint, "checkpoint", lambda *a, **k: (calls.append(1), real(*a, **k))[1]
    )
    args = "{img_size: 32, patch_size: 8}" if arch == "test_vit" else "{}"
    states = []
    for on in ("false", "true"):
        r = recipe(
            "classify",
            *(f"name={arch}.x", f"backbone.arch={arch}", f"backbone.args={args}"),
            f"training.checkpoint_activations={on}",
        )
        stepper, batches = stepper_and_batches(r, 2)
        for step, each in enumerate(batches):
            stepper(step, each)
        states.append(stepper.objective.state_dict())
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], atol=1e-6, rtol=1e-5, msg=name)
    assert calls


def test_batchnorm_over_ranks_is_refused_without_a_gpu() -> None:
    class TwoRanks:
        alone, size = False, 2

    r = recipe("classify", "training.sync_batchnorm=true")
    objective = build_objective(r, open_dataset(r.data, "train", None))
    with pytest.raises(RecipeError, match=r"training\.sync_batchnorm: found true .* expected false"):
        Stepper(objective, r, 6, CPU, ranks=TwoRanks())  # type: ignore[arg-type]


# --- compiled encoders


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_encoders_train_alike_and_are_themselves_again_afterwards(tmp_path: Path) -> None:
    vit = ("name=test_vit.x", "backbone.arch=test_vit", "backbone.args={img_size: 32, patch_size: 8}")
    short = (*vit, "training.drop_last=true", "training.batch_size=128", "objective.head_batchnorm=false")
    short = (*short, "training.observe_every=2")
    plain = run(recipe("moco", *short, "objective.key_groups=1"), tmp_path / "a")
    fast = run(recipe("moco", *short, "objective.key_groups=1", "training.compile=default"), tmp_path / "b")
    assert all(module._compiled_call_impl is None for module in fast.modules())
    assert list(fast.state_dict()) == list(plain.state_dict())
    rows = [RunFolder(tmp_path / name).rows() for name in "ab"]
    for name in ("loss", "gradient_norm", "feature_gradient_many", "negative_variance_ft", "uniformity"):
        of_both = [[row[name] for row in each if name in row] for each in rows]
        assert of_both[0] and of_both[0] == pytest.approx(of_both[1], rel=1e-2 if "grad" in name else 1e-3)
    classes = [RunFolder(tmp_path / name).class_rows() for name in "ab"]
    assert [row["images"] for row in classes[0]] == [row["images"] for row in classes[1]] and classes[0]


def test_a_compiler_that_fails_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import Unsupported

    objective = stepper_and_batches(recipe("classify"), 1)[0].objective
    expected = r"training\.compile: .*no compiler.*; set null"
    with pytest.raises(TrainingError, match=expected), compiled(objective, "default"):
        raise Unsupported("no compiler")


# --- the optimizer's state


@pytest.mark.parametrize("kind", RECIPES)
def test_every_step_gives_every_parameter_a_gradient(kind: str) -> None:
    """Ranks on GPUs wait for all of them: `find_unused_parameters` costs a walk through each step's graph."""
    stepper, batches = stepper_and_batches(recipe(kind), 2)
    for step, each in enumerate(batches):
        stepper(step, each)
        without = [n for n, p in stepper.objective.named_parameters() if p.requires_grad and p.grad is None]
        assert not without


# --- nothing in a step waits for the device


class NoWaiting(TorchDispatchMode):
    """Refuses operations whose result's value or size the host has to know, or that copy its numbers."""

    REFUSED = (
        *("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal", "is_nonzero"),
        "lift_fresh",  # torch.tensor and the like: on a GPU a copy that is waited for
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in {"index", "index_put", "index_put_"} else ()
        by_mask = any(i is not None and i.dtype in {torch.bool, torch.uint8} for i in indices)
        assert name not in self.REFUSED and not by_mask, f"{name} makes the host wait"
        return func(*args, **(kwargs or {}))


def test_the_watchdog_barks() -> None:
    x = torch.randn(3)
    for wait in (lambda: x.sum().item(), lambda: x[x > 0], x.nonzero, lambda: x.new_tensor([0.5])):
        with pytest.raises(AssertionError, match="makes the host wait"), NoWaiting():
            wait()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", SETTINGS)
def test_no_step_waits_for_the_device(kind: str, accumulate: int) -> None:
    r = recipe(kind, "training.epochs=3", f"training.accumulate={accumulate}")
    stepper, batches = stepper_and_batches(r, 8)
    for step, each in enumerate(batches):  # FT and PiCO's second phase are in
        if step == 0:
            stepper(step, each)  # makes the optimizer's state
            continue
        with NoWaiting():
            stepper(step, each)


# --- metrics


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


def test_weights_that_the_last_update_spoilt_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of that step is still finite: it is of the weights before."""
    real, steps = Stepper.__call__, []

    def call(self: Stepper, step: int, *batch: Any) -> Output:
        output = real(self, step, *batch)
        steps.append(output.loss.isfinite())
        if step == 11:
            with torch.no_grad():
                self.parameters[1][0] = math.inf
        return output

    monkeypatch.setattr(Stepper, "__call__", call)
    with pytest.raises(TrainingError, match=r"a weight became inf by step 12; the state after step 6 is"):
        run(recipe("classify", "training.checkpoint_every=1"), tmp_path / "a")
    assert all(steps)
    kept = RunFolder(tmp_path / "a").load()
    assert kept is not None
    assert kept.step == 6
