"""Where and in which precision a step computes: device, threads, autocast, compilation, recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import RecipeError, TrainingError, did_you_mean
from zoo.modules import MomentumEncoder, Teacher
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.recipe.sections import ON_GPU_ALONE, TrainingSection

DEVICES: tuple[str, ...] = get_args(TrainingSection.model_fields["device"].annotation)
_AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(wanted: str, where: str = "training.device") -> torch.device:
    """Return the device of a word: "auto", "cpu" or "cuda".

    Raises:
        RecipeError: beginning with `where`, for any other word, or if a GPU is asked for and there is none.
    """
    if wanted not in DEVICES:
        hint = did_you_mean(wanted, DEVICES)
        if str(wanted).startswith("cuda:"):
            hint = " CUDA_VISIBLE_DEVICES chooses among several GPUs"
        raise RecipeError(f'{where}: found "{wanted}", expected one of {", ".join(DEVICES)}.{hint}')
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise RecipeError(f'{where}: found "cuda", but torch sees no GPU here; use "auto" or "cpu"')
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let torch compute with `count` threads inside the block; None leaves its default."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def place(objective: Objective, recipe: Recipe, device: torch.device) -> None:
    """Move an objective to the device and memory format of its training, in training mode."""
    layout = torch.channels_last if recipe.training.channels_last else torch.contiguous_format
    objective.to(device).to(memory_format=layout).train()


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Return the type of `training.precision` for matrix products; None: that of their inputs.

    Raises:
        RecipeError: for a precision that the device does not have.
    """
    if precision in ON_GPU_ALONE and device.type == "cpu":
        raise RecipeError(
            f'training.precision: "{precision}" needs a GPU, and torch sees none; use "fp32" or "bf16"'
        )
    return _AUTOCAST[precision]


def encoders(objective: Objective) -> list[nn.Module]:
    """Return the modules that take images: the query encoder, then key encoders and teachers."""
    keys = [child.module for child in objective.modules() if isinstance(child, MomentumEncoder)]
    teachers = [child.encoder for child in objective.modules() if isinstance(child, Teacher)]
    return [objective.encoder, *keys, *teachers]


@contextmanager
def compiled(objective: Objective, mode: str | None) -> Iterator[None]:
    """Run the encoders through `torch.compile` in this mode inside the block; None compiles nothing.

    Raises:
        TrainingError: if the compiler fails, or there is none.
    """
    modules = encoders(objective) if mode is not None else []
    for module in modules:
        module.compile(dynamic=False, mode=mode)
    try:
        yield
    except Exception as error:
        if modules and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = " ".join(str(error).split())[:200]
            raise TrainingError(f"training.compile: torch.compile failed ({reason}); set null") from error
        raise
    finally:
        for module in modules:
            module._compiled_call_impl = None  # evaluation would compile it anew, for a single pass


def checkpoint_activations(encoder: nn.Module, arch: str) -> None:
    """Let `encoder` compute its activations again in the backward pass.

    Raises:
        RecipeError: if the architecture cannot.
    """
    switch = getattr(encoder, "set_grad_checkpointing", None)
    try:
        assert switch is not None
        switch(True)
    except AssertionError:  # timm's own refusal
        raise RecipeError(
            f"training.checkpoint_activations: {arch} cannot compute its activations again; set false"
        ) from None


@contextmanager
def frozen_statistics(module: nn.Module | None) -> Iterator[None]:
    """Leave BatchNorm's running statistics of `module` unchanged inside the block.

    For the backward pass of checkpointed activations: its second forward would move them a second time.
    """
    norms = [] if module is None else [child for child in module.modules() if isinstance(child, _BatchNorm)]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None  # the same operations, without effect
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


@contextmanager
def float32_products(*, tf32_convolutions: bool = False) -> Iterator[None]:
    """Multiply float32 as float32 inside the block, on a GPU too, whatever was set around it.

    Args:
        tf32_convolutions: let convolutions round their inputs to TensorFloat-32.
    """
    # torch has an older and a newer setting; both are set, since libraries read either
    cudnn: Any = torch.backends.cudnn
    places: list[Any] = [cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul]
    older, before = cudnn.allow_tf32, [place.fp32_precision for place in places]
    rounding = "tf32" if tf32_convolutions else "ieee"
    cudnn.allow_tf32 = tf32_convolutions
    for place, value in zip(places, (rounding, rounding, "ieee"), strict=True):
        place.fp32_precision = value
    try:
        yield
    finally:
        cudnn.allow_tf32 = older
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value


@contextmanager
def fastest_kernels(device: torch.device, precision: str) -> Iterator[None]:
    """Let cuDNN time its kernels on each new shape and keep the fastest; TF32 only where `precision` is that.

    torch lets convolutions use TF32 by default: a record that says fp32 would not be true.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        with float32_products(tf32_convolutions=precision == "tf32"):
            yield
    finally:
        torch.backends.cudnn.benchmark = before
