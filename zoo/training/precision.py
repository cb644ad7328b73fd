"""Device, precision, threads and compilation of a training step."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, get_args

import torch
from torch import nn
from torch.backends import cuda

from zoo.errors import RecipeError, did_you_mean
from zoo.modules import MomentumEncoder, Teacher
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.recipe.sections import TrainingSection

cudnn: Any = torch.backends.cudnn
DEVICES: tuple[str, ...] = get_args(TrainingSection.model_fields["device"].annotation)
SHORT = 1e8  # pixels of all views of all epochs: ten minutes of one core for ResNet-32 at 32 pixels
REPAID = {"cpu": 2e9, "cuda": 4e10}  # pixels after which compiling has been repaid; a GPU's by estimate


def choose(recipe: Recipe, encoder: nn.Module, images: int, device: torch.device) -> dict[str, str | None]:
    """Return what `auto` in `training.precision` and `training.compile` stands for on this machine.

    bf16 where the hardware supports it, except in short trainings, which are then the same everywhere, and in
    encoders with depthwise convolutions on a CPU, which take twice as long in bf16. Compilation in long
    trainings on a GPU or a CPU with AMX; on others it gained nothing. Fixed rules keep runs comparable.
    """
    sizes = recipe.views.train_sizes or [recipe.views.eval.size]
    pixels = recipe.training.epochs * images * sum(size**2 for size in sizes)
    if device.type == "cpu":
        amx = gains = torch.cpu._is_amx_tile_supported()
        depthwise = any(isinstance(m, nn.Conv2d) and 1 < m.groups == m.in_channels for m in encoder.modules())
        bf16 = (amx or torch.cpu._is_avx512_bf16_supported()) and not depthwise
    else:
        bf16, gains = torch.cuda.is_bf16_supported(including_emulation=False), find_spec("triton") is not None
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    compile = "default" if gains and compiler and pixels >= REPAID[device.type] else None
    return {"precision": "bf16" if bf16 and pixels >= SHORT else "fp32", "compile": compile}


def resolve_auto(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with every `auto` in `training` replaced by its value in `values`."""
    own = recipe.training
    settled = {key: values[key] for key in ("precision", "compile") if getattr(own, key) == "auto"}
    return recipe.model_copy(update={"training": own.model_copy(update=settled)})


def pick_device(wanted: str, where: str = "training.device") -> torch.device:
    """Return the device for "auto", "cpu" or "cuda"; RecipeError, naming `where`, if it is not available."""
    if wanted not in DEVICES:
        hint = did_you_mean(wanted, DEVICES)
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
    """Move an objective to its training's device and memory format, and set training mode."""
    layout = torch.channels_last if recipe.training.channels_last else torch.contiguous_format
    objective.to(device).to(memory_format=layout).train()


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass; `auto` here is float32. RecipeError for tf32 on a CPU."""
    if precision == "tf32" and device.type == "cpu":
        raise RecipeError('training.precision: "tf32" needs a GPU; use "fp32" or "bf16"')
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def encoders(objective: Objective) -> list[nn.Module]:
    """Return the modules that take images: the query encoder, then key encoders and teachers."""
    keys = [child.module for child in objective.modules() if isinstance(child, MomentumEncoder)]
    teachers = [child.encoder for child in objective.modules() if isinstance(child, Teacher)]
    return [objective.encoder, *keys, *teachers]


@contextmanager
def compiled(objective: Objective, mode: str | None) -> Iterator[None]:
    """Compile the encoders with `torch.compile` in this mode inside the block; None and `auto` do nothing.

    Only `forward` is compiled, so that the hooks of an observed step still receive the features.
    """
    modules = encoders(objective) if mode not in (None, "auto") else []
    for module in modules:
        vars(module)["forward"] = torch.compile(module.forward, dynamic=False, mode=mode)
    try:
        yield
    finally:
        for module in modules:
            del vars(module)["forward"]


@contextmanager
def float32_products(precision: str = "fp32", *, fastest: bool = False) -> Iterator[None]:
    """Multiply float32 in full precision inside the block, also on a GPU, whatever is set outside.

    With `precision` "tf32" convolutions may round their inputs to TensorFloat-32, which is torch's default;
    `fastest` lets cuDNN benchmark its kernels for each shape.
    """
    # torch has an older and a newer setting; both are set, because libraries read either
    rounding = "tf32" if precision == "tf32" else "ieee"
    owners, key = (cudnn.conv, cudnn.rnn, cuda.matmul), "fp32_precision"
    before = [(cudnn, name, getattr(cudnn, name)) for name in ("benchmark", "allow_tf32")]
    before += [(each, key, getattr(each, key)) for each in owners]
    cudnn.benchmark, cudnn.allow_tf32 = fastest or cudnn.benchmark, precision == "tf32"
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = rounding
    cuda.matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
