"""In which precision a step computes, and what makes it cheaper: compilation, checkpointing, kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from zoo.errors import RecipeError, TrainingError
from zoo.modules import MomentumEncoder, Teacher
from zoo.objectives import Objective
from zoo.recipe.sections import ON_GPU_ALONE

_AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """Return what `training.precision` computes matrix products in; None: what they are given in.

    Raises:
        RecipeError: for a precision that the device does not have.
    """
    if precision in ON_GPU_ALONE and device.type == "cpu":
        raise RecipeError(
            f'training.precision: "{precision}" needs a GPU, and torch sees none; use "fp32" or "bf16"'
        )
    return _AUTOCAST[precision]


def encoders(objective: Objective) -> list[nn.Module]:
    """Return the modules that take images: the query encoder; a key encoder and teachers, where there are."""
    keys = [child.module for child in objective.modules() if isinstance(child, MomentumEncoder)]
    teachers = [child.encoder for child in objective.modules() if isinstance(child, Teacher)]
    return [objective.encoder, *keys, *teachers]


@contextmanager
def compiled(objective: Objective, mode: str | None) -> Iterator[None]:
    """Run the encoders through `torch.compile` inside the block; parameters and state keys stay as they are.

    `mode` is torch.compile's; None compiles nothing. Every shape is compiled by itself: a smaller last batch
    costs a second compilation and no speed.

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
    except AssertionError:  # how timm says it, too
        raise RecipeError(
            f"training.checkpoint_activations: {arch} cannot compute its activations again; set false"
        ) from None


@contextmanager
def frozen_statistics(module: nn.Module | None) -> Iterator[None]:
    """Keep BatchNorm's running statistics as they are inside the block; None has none.

    For the backward pass of checkpointed activations: its second forward would move them a second time.
    """
    norms = [] if module is None else [child for child in module.modules() if isinstance(child, _BatchNorm)]
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None  # the same operations, which change nothing
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


@contextmanager
def float32_products(*, tf32_convolutions: bool = False) -> Iterator[None]:
    """Multiply float32 as float32 inside the block, on a GPU too, whatever was set around it.

    Args:
        tf32_convolutions: let those alone round their factors to TensorFloat-32.
    """
    # torch has two ways to set this, and refuses to read by the one what the other has set otherwise: both
    # are set alike, and what is called inside may read either
    cudnn: Any = torch.backends.cudnn  # whose type does not know what it has got since
    conv, rnn, matmul = cudnn.conv, cudnn.rnn, cast(Any, torch.backends.cuda.matmul)
    older = _readable_tf32()
    before = cudnn.fp32_precision, conv.fp32_precision, rnn.fp32_precision, matmul.fp32_precision
    cudnn.fp32_precision = "ieee"  # where `torch.backends.cudnn.flags` leaves convolutions unset
    cudnn.allow_tf32 = tf32_convolutions  # the older way; it sets the others too, so they come after
    conv.fp32_precision = rnn.fp32_precision = "tf32" if tf32_convolutions else "ieee"
    if matmul.fp32_precision == "tf32":  # else it stays unset: compilers read it by the other way
        matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        cudnn.allow_tf32 = older
        cudnn.fp32_precision, conv.fp32_precision, rnn.fp32_precision, matmul.fp32_precision = before


def _readable_tf32() -> bool:
    """Read the older setting of cuDNN's products; torch's default where they are set in both ways."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return True


@contextmanager
def fastest_kernels(device: torch.device, precision: str) -> Iterator[None]:
    """Let cuDNN try its kernels on each new shape and keep the fastest, inside the block.

    Those that round a float32 convolution's factors to TensorFloat-32 are among them only where `precision`
    is "tf32": torch takes them unasked, and a record that says fp32 would not be true.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        with float32_products(tf32_convolutions=precision == "tf32"):
            yield
    finally:
        torch.backends.cudnn.benchmark = before
