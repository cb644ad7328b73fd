"""A loss or gradient that is not finite: where exactly it began, and what to do about it.

Nothing waits for the device while training goes well: losses are seen some steps late. Since every step is a
function of the state and its number, the loop can then go back to the last checkpoint and look at each step
before it does harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo.data import Batch
from zoo.errors import TrainingError
from zoo.objectives import Output
from zoo.training.sections import TrainingSection
from zoo.training.step import Stepper

MOST_REPEATS = 10
"""Repetitions that find nothing before the machine is held to be at fault."""

LEAST_SCALE = 2.0**-14
"""Of the loss under float16, which begins at 2^16: 30 updates left out that it did not recover from.
(fairseq's is as small.)"""

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class SeenLate(Exception):
    """Something, which its text says, is not finite by step `step` (from 1); it began there or earlier."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(what)
        self.step = step


class BadStep(Exception):
    """Step `step` (from 1) is where it began; the state is as it was before that step."""

    def __init__(self, step: int, what: str, lr: float) -> None:
        super().__init__(what)
        self.step, self.lr = step, lr


class SpoiltStep(BadStep):
    """As `BadStep`, but the update has been done: loss and gradients were finite, and a weight is not."""


def do_carefully(stepper: Stepper, step: int, batch: Batch, total: int) -> Output:
    """Do update number `step` (from 0), looking at loss and gradients before the optimizer does.

    The forward has moved BatchNorm's running statistics by then; they are put back.

    Args:
        stepper: does the step.
        step: its number.
        batch: this rank's rows.
        total: images of all ranks' rows together.

    Raises:
        BadStep: if they are not finite on some rank.
        SpoiltStep: if a weight is not finite afterwards.
    """
    moved = [b for name, b in stepper.objective.named_buffers() if name.rpartition(".")[2] in _STATISTICS]
    kept = [buffer.clone() for buffer in moved]

    def look(output: Output) -> None:
        found = _in_loss(output) or ("" if stepper.scaler.is_enabled() else _in_gradients(stepper))
        if any(stepper.ranks.vote(int(bool(found)))):
            raise BadStep(step + 1, found or "on another rank, the loss became nan or inf", stepper.lr)

    stepper.watch = look
    try:
        output = stepper(step, batch, total)
    except BadStep:
        for buffer, value in zip(moved, kept, strict=True):
            buffer.copy_(value)
        raise
    finally:
        stepper.watch = None
    found = in_weights(stepper)
    if any(stepper.ranks.vote(int(bool(found)))):
        raise SpoiltStep(step + 1, found or "on another rank, a weight became nan or inf", stepper.lr)
    return output


def check_scale(stepper: Stepper, step: int, kept: Callable[[], str]) -> None:
    """Make sure that updates are still done under float16; waits for the device.

    A loss scaler leaves out an update whose gradients are not finite and halves its scale, which doubles
    again after 2,000 good ones: what is left out once in a while is how it works. With a scale so small
    gradients are lost instead, and where it falls in a row nothing is learned at all; no loss says so.

    Args:
        stepper: does the steps.
        step: the last one done, from 1.
        kept: says which state is saved.

    Raises:
        TrainingError: when the scale has fallen below `LEAST_SCALE`.
    """
    if stepper.scaler.is_enabled() and (scale := stepper.scaler.get_scale()) < LEAST_SCALE:
        raise TrainingError(
            f"training.precision: fp16 has left out so many updates up to step {step}, whose gradients were "
            f"nan or inf, that its scale of the loss fell from 65536 to {scale:g}; {kept()}. Give the same "
            "command with --resume and --set training.precision=bf16 or fp32"
        )


def in_row(row: dict[str, float]) -> str:
    """Say what is not finite in a row of metrics; '' if nothing is."""
    return "" if math.isfinite(row["loss"]) else f"the loss became {row['loss']}"


def in_weights(stepper: Stepper) -> str:
    """Say whether a trained weight is not finite; waits for the device.

    The last update's loss was that of the weights before it.
    """
    parameters = [_local(parameter.detach()) for parameter in stepper.parameters]
    # a shard is empty where a parameter has fewer rows than there are ranks; it has no largest value
    largest = float(nn.utils.get_total_norm([p for p in parameters if p.numel()], norm_type=math.inf))
    return "" if math.isfinite(largest) else f"a weight became {largest}"


def end_at(bad: BadStep, total: int, section: TrainingSection, kept: str) -> TrainingError:
    """Return the error that ends a run at a bad step; it advises what is not set already."""
    limit = section.skip_bad_steps
    clip = "set" if section.clip_grad is None else f"lower (it is {section.clip_grad:g})"
    exact = "" if section.precision == "fp32" else ", or training.precision=fp32"
    used = f"{limit} bad step(s) are skipped already; " if limit else ""
    return TrainingError(
        f"{bad} in step {bad.step} of {total} at learning rate {bad.lr:g}; {used}{kept}. "
        f"Lower optimizer.lr, lengthen schedule.warmup_epochs or {clip} training.clip_grad in a run with "
        f"another --out, or give the same command with --resume and --set training.skip_bad_steps={limit + 1}"
        f"{exact}"
    )


def flicker(seen: SeenLate, kept: str) -> TrainingError:
    """Return the error for trouble that comes back, but never when it is looked at."""
    return TrainingError(
        f"{seen} by step {seen.step}, and so {MOST_REPEATS} times, but not when the same steps were "
        f"repeated: this machine computes unreliably; {kept}. Use another one"
    )


def _in_loss(output: Output) -> str:
    loss = float(output.loss)
    return "" if math.isfinite(loss) else f"the loss became {loss}"


def _in_gradients(stepper: Stepper) -> str:
    named = [(n, _local(p.grad)) for n, p in stepper.objective.named_parameters() if p.grad is not None]
    if not named:
        return ""
    finite = torch.stack([grad.isfinite().all() for _, grad in named]).tolist()
    bad = [pair for pair, good in zip(named, finite, strict=True) if not good]
    if not bad:
        return ""
    name, grad = bad[0]
    others = f" and {len(bad) - 1} others" if len(bad) > 1 else ""
    return f"the gradient of {name}{others} became {'nan' if grad.isnan().any() else 'inf'}"


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; others as they are."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
