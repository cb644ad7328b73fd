"""What ends a training from within: numbers that are not finite, and memory that is not there.

Nothing waits for the device while training goes well: losses are seen some steps late. No state is saved
after a loss or weight that is not finite, so the last checkpoint is from before it.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from zoo.errors import TrainingError, first_line
from zoo.training.step import Stepper

LEAST_SCALE = 2.0**-14
"""Of the loss under float16, which begins at 2^16: 30 updates left out that it did not recover from.
(fairseq's is as small.)"""

_ALLOCATORS = (
    "can't allocate memory",  # the CPU's, whose error has no class of its own
    "not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def in_row(row: dict[str, float]) -> str:
    """Say what is not finite in a row of metrics, and since when; '' if nothing is."""
    if math.isfinite(row["loss"]):
        return ""
    return f"the loss became {row['loss']} in step {row['first_bad_step']:g} at learning rate {row['lr']:g}"


def in_weights(stepper: Stepper, step: int) -> str:
    """Say whether a trained weight is not finite after `step`; '' if none is. Waits for the device.

    It shows a gradient that was not finite: the last update's loss was that of the weights before it.
    """
    largest = float(nn.utils.get_total_norm([p.detach() for p in stepper.parameters], norm_type=math.inf))
    return "" if math.isfinite(largest) else f"a weight became {largest} by step {step}"


def not_finite(what: str, step: int, kept: str) -> TrainingError:
    """Return the error for a loss or weight that is not finite; `what` is '' where another rank saw it."""
    return TrainingError(
        f"{what or f'another rank found a loss or weight that is nan or inf by step {step}'}; {kept}. "
        "Train with a smaller optimizer.lr or a longer schedule.warmup_epochs in another --out, or, where "
        "training.precision is not fp32, go on with --resume and --set training.precision=fp32"
    )


def check_scale(stepper: Stepper, step: int, kept: Callable[[], str]) -> None:
    """Make sure that updates are still done under float16; waits for the device.

    A loss scaler leaves out an update whose gradients are not finite and halves its scale, which doubles
    again after 2,000 good ones. With a scale that only falls nothing is learned, and no loss says so.

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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation of the GPU's or the host's memory failed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):  # a process for loading data could not be made
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _ALLOCATORS)


@contextmanager
def out_of_memory_told(where: Callable[[], str], saved: Callable[[], str]) -> Iterator[None]:
    """Turn a failed allocation inside the block into one sentence.

    Args:
        where: says in which step training is, e.g. "in step 8 of 100".
        saved: says which state is kept.

    Raises:
        TrainingError: when memory runs out.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        asked = " ".join(first_line(error).split())[:160]
        raise TrainingError(
            f"out of memory {where()} ({asked}); {saved()}. Give the same command with --resume and --set "
            "training.accumulate=2, training.checkpoint_activations=true or training.precision=bf16"
        ) from None
