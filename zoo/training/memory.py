"""What to say when memory runs out: how much of it goes where, and what needs less."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from zoo.errors import TrainingError, first_line
from zoo.training.checkpoint import state_bytes
from zoo.training.disk import readable
from zoo.training.recipe import Recipe
from zoo.training.step import Stepper

_ALLOCATORS = (
    "can't allocate memory",  # the CPU's, whose error has no class of its own
    "not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation of the GPU's or the host's memory failed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):  # a process for loading data could not be made
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _ALLOCATORS)


@contextmanager
def explained(
    stepper: Stepper, recipe: Recipe, device: torch.device, where: Callable[[], str], saved: Callable[[], str]
) -> Iterator[None]:
    """Turn a failed allocation inside the block into a message with the sizes and what would help.

    Args:
        stepper: whose state takes the memory.
        recipe: what it does with it.
        device: where.
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
            f"out of memory {where()}: {_sizes(stepper, recipe, device)} ({asked}). "
            f"Give the same command with --resume and {_advice(stepper, recipe)}; {saved()}"
        ) from None


def _sizes(stepper: Stepper, recipe: Recipe, device: torch.device) -> str:
    as_stored = recipe.data.image_size or recipe.views.eval.size
    heights = recipe.views.train_sizes or [as_stored] * len(recipe.views.train)
    views = ", ".join(
        f"{recipe.training.batch_size} images x {heights.count(height)} view(s) of {height} px"
        for height in dict.fromkeys(heights)
    )
    weights = sum(parameter.nbytes for parameter in stepper.parameters)
    rest = state_bytes(stepper.objective.state_dict()) - weights
    optimizer = readable(state_bytes(stepper.optimizer.state_dict()))
    sizes = (
        f"{views}; trained parameters {readable(weights)} and as much for their gradients, optimizer "
        f"{optimizer}, teacher, queue and buffers {readable(max(rest, 0))}"
    )
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_allocated(device)
        sizes += f"; the GPU has {readable(total)}, torch holds {readable(held)}, {readable(free)} are free"
    return sizes


def _advice(stepper: Stepper, recipe: Recipe) -> str:
    """Name what is not used yet of the three knobs, or what is left when all are."""
    section = recipe.training
    knobs = []
    least = 2 * getattr(recipe.objective, "key_groups", 1)  # BatchNorm of a group needs two images
    most = section.batch_size // least
    parts = [n for n in range(section.accumulate + 1, most + 1) if section.batch_size % n == 0]
    if parts:
        knobs.append(f"training.accumulate={parts[0]}")
    fixed = section.compile or section.cuda_graph
    if not (section.checkpoint_activations or fixed) and hasattr(
        stepper.objective.encoder, "set_grad_checkpointing"
    ):
        knobs.append("training.checkpoint_activations=true")
    if section.precision in ("fp32", "tf32"):
        knobs.append("training.precision=bf16")
    if len(knobs) < 3 and not section.shard and section.early_stopping is None:
        knobs.append("training.shard=true on several GPUs")
    if not knobs or knobs[0].startswith("training.shard"):
        return "nothing is left to set: begin again with a smaller training.batch_size or image size" + (
            f", or {knobs[0]}" if knobs else ""
        )
    return "--set " + " or ".join(knobs)
