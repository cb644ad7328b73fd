"""Backbones: any timm model, and ResNets for 32-pixel images that this project registers with timm."""

import ctypes
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from zoo.backbones import cifar as cifar  # imported for its registration with timm
from zoo.errors import ReleaseError, ZooError, did_you_mean, first_line

_NOT_ARGUMENTS = {"self", "args", "kwargs", "device", "dtype", "num_classes"}
CHOSEN = {"features_only", "out_indices", "feature_cls"}  # timm factory arguments that a load may set
_FACTORIES = (timm.create_model, timm.models.build_model_with_cfg)
NO_ARGUMENTS = {name for factory in _FACTORIES for name in inspect.signature(factory).parameters} - {"kwargs"}
NO_ARGUMENTS |= {"arch", "num_classes", "pruned", "device", "dtype", *CHOSEN}
"""Options of timm's factory and builder that select weights or code, not the architecture."""
_TRIM, _LARGE, _MMAPS = -1, -3, -4  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX of glibc's malloc.h
_KEEPING = list[bool]()  # one entry per active block of `keeping_memory`, in any thread


def check_arguments(model_args: Mapping[str, Any]) -> None:
    """Raise ReleaseError for arguments of an architecture that select other weights, or code."""
    if refused := sorted(NO_ARGUMENTS & model_args.keys()):
        raise ReleaseError(f"model_args: {', '.join(refused)} cannot be part of a release")


def create(arch: str, *, num_classes: int = 0, **model_args: Any) -> nn.Module:
    """Build a freshly initialised timm model.

    Args:
        arch: a name in timm, e.g. `"resnet50"`, `"cifar_resnet32"` or `"resnet18_cifar"`.
        num_classes: size of the classifier; 0 gives the headless encoder, which returns pooled features.
        model_args: arguments of the architecture, e.g. `img_size=32, patch_size=4`.

    Raises:
        ZooError: for an unknown architecture or an invalid argument, with the nearest valid spelling.
    """
    if not timm.is_model(arch):
        raise ZooError(f'unknown architecture "{arch}".{did_you_mean(arch, timm.list_models())}')
    try:
        return timm.create_model(arch, num_classes=num_classes, **model_args)
    # Architectures check their own arguments and raise any of these.
    except (TypeError, ValueError, AssertionError, RuntimeError, LookupError, AttributeError) as error:
        raise ZooError(_refusal(arch, model_args, error)) from error


_FILLS = {getattr(Tensor, f"{name}_") for name in ("zero", "fill", "copy", "normal", "uniform", "erfinv")}
_FILLS |= {Tensor.mul_, Tensor.add_, Tensor.div_, Tensor.clamp_}


class SkipInit(TorchFunctionMode):
    """Skips initialisation while models are built on the meta device to receive a file's tensors.

    Drawing weights that a file then replaces takes most of the time when timm loads a large model.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS and args[0].is_meta:
            return args[0]
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _refusal(arch: str, model_args: Mapping[str, Any], error: Exception) -> str:
    unknown = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if unknown:
        class_name, key = unknown.groups()
        module = sys.modules[timm.models.model_entrypoint(arch).__module__]
        parameters = inspect.signature(getattr(module, class_name, object)).parameters
        valid = [name for name in parameters if name not in _NOT_ARGUMENTS]
        return f'{arch} takes no argument "{key}".{did_you_mean(key, valid)} It takes {", ".join(valid)}'
    shown = [f"{key}={value!r}" for key, value in model_args.items() if not key.startswith("pretrained")]
    given = ", ".join(shown) or "its default arguments"
    return f"{arch} cannot be built with {given}: {first_line(error)}"


def feature_dim(model: nn.Module) -> int:
    """Return the number of pooled features D_f, the width of `model(x)` without a classifier."""
    return int(getattr(model, "head_hidden_size", None) or model.num_features)  # type: ignore[arg-type]


def is_own(arch: str) -> bool:
    """Whether this project registers `arch`: plain timm knows it only after `import zoo`."""
    return timm.is_model(arch) and timm.models.model_entrypoint(arch).__module__.startswith(__name__)


def check_encoder(model: nn.Module, size: int) -> None:
    """Check that `model` maps images `[2, 3, size, size]` to pooled features `[2, D_f]`.

    Raises:
        ZooError: as `check_input`, or naming the shape of the model's output.
    """
    if lacks := [x for x in ("num_features", "num_classes", "pretrained_cfg") if not hasattr(model, x)]:
        raise ZooError(f"{name_of(model)}: found no {' and no '.join(lacks)}, which timm's models have")
    output = check_input(model, size)
    expected = [2, feature_dim(model)]
    found = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
    if found != expected:
        raise ZooError(
            f"{name_of(model)}: makes {found} of 2 images, expected pooled features {expected}; leave "
            "global_pool and what else decides its output out of the model's arguments"
        )


def check_input(model: nn.Module, size: int) -> Any:
    """Check that `model` accepts images `[2, 3, size, size]`, and return its output for zeros.

    Runs the model once in evaluation mode without gradients: neither BatchNorm statistics nor random number
    generators change, and every module's mode is restored.

    Raises:
        ZooError: naming the architecture, the size, the model's own error and an argument that may help.
    """
    like = next(model.parameters(), torch.empty(0))
    cuda = [like.device] if like.device.type == "cuda" else []
    try:
        with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=cuda):
            return model(torch.zeros(2, 3, size, size, device=like.device, dtype=like.dtype))
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError, ZeroDivisionError) as error:
        name, channels = name_of(model), re.search(r"to have (\d+) channels, but got 3 channels", str(error))
        if channels:
            found = f"an input of {channels[1]} channel{'s' * (channels[1] != '1')}"
            raise ZooError(f"{name}: found {found}, expected 3: red, green, blue") from error
        hint = " Use smaller images" if "memory" in str(error) else _size_hint(model, size)
        reason = f"{first_line(error).rstrip('.')}.{hint}"
        raise ZooError(f"{name} takes no {size} x {size} images: {reason}") from error


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the block, and restore the mode of each submodule."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:  # parents come first, so that a child's own mode prevails
            part.train(training)  # not `part.training = training`: a class may override `train`


@contextmanager
def keeping_memory() -> Iterator[None]:
    """Make glibc keep memory freed inside the block for the next tensors; does nothing without glibc.

    Otherwise the kernel clears their pages at every step, half of a step of EfficientNet-Lite0 at 160 pixels.
    """
    try:
        set_option = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        yield
        return
    _KEEPING.append(True)
    set_option(_MMAPS, 0)
    set_option(_TRIM, -1)
    try:
        yield
    finally:  # after the last block, set the largest values that glibc's dynamic thresholds reach
        _KEEPING.pop()
        for option, value in () if _KEEPING else ((_MMAPS, 65_536), (_LARGE, 32 << 20), (_TRIM, 64 << 20)):
            set_option(option, value)


def _size_hint(model: nn.Module, size: int) -> str:
    if name_of(model) == type(model).__name__:  # a user's own module may accept only one size
        return " Say which size it takes: preprocess=dict(input_size=..., ...)"
    helpful = {
        "img_size": f"img_size={size}",
        "patch_size": "a smaller patch_size",
        "output_stride": "output_stride=8",
    }
    valid = inspect.signature(type(model)).parameters
    known = [text for argument, text in helpful.items() if argument in valid]
    return f" Set {' and '.join(known)} in the model's arguments" if known else " Use larger images"


def name_of(model: nn.Module) -> str:
    """Return the architecture that timm recorded in a model, else the name of its class."""
    config = getattr(model, "pretrained_cfg", None) or {}
    return str(config.get("architecture") or type(model).__name__)


def size_built_for(model: nn.Module) -> int | None:
    """Return a model's own input size, if it has one; `pretrained_cfg` describes only the pretrained weights.

    timm stores a pair in the patch embedding, DINO's code a number, torchvision's ViT a number in the model.
    """
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or getattr(
        model, "image_size", None
    )
    if isinstance(size, tuple | list):
        size = size[-1] if size else None
    return size if isinstance(size, int) and size > 0 else None
