"""From a release folder to a model: on the meta device, without initialisation, tensors assigned.

timm spends most of a load initialising weights that it then overwrites. Here a model is built without
storage, and the file's tensors become its parameters. The result is what timm would load, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from zoo import backbones
from zoo.errors import ReleaseError, ZooError
from zoo.release.format import WEIGHTS, pretrained_cfg_of


def build(
    folder: Path,
    config: Mapping[str, Any],
    *,
    num_classes: int,
    centers_head: bool,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    model_kwargs: Mapping[str, Any],
) -> nn.Module:
    """Return the model of `zoo.load`; see there for the arguments."""
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise ReleaseError(f"{folder}: {WEIGHTS} is missing, so there is nothing to load")
    classes = config["num_classes"] if centers_head else 0
    state = read_tensors(weights)
    if classes == 0 and config["num_classes"]:
        classifier = config["pretrained_cfg"]["classifier"]
        state = {key: value for key, value in state.items() if key.rpartition(".")[0] != classifier}

    model = None if model_kwargs.get("features_only") else _on_meta(config, classes, model_kwargs)
    problem = "" if model is None else _mismatch(model.state_dict(), state)
    if model is None or (problem and model_kwargs):
        # Such arguments change the tensors: timm knows how to adapt them, e.g. to other `in_chans`.
        model = _create(config, classes or num_classes, model_kwargs, weights)
        return model.to(device=device, dtype=dtype)
    if problem:
        raise ReleaseError(f"{weights}: does not fit {config['architecture']}: {problem}")

    expected = model.state_dict()
    state = {key: value.to(expected[key].dtype) for key, value in state.items()}
    model.load_state_dict(state, assign=True)
    if not _fill_buffers(model):
        with torch.random.fork_rng(devices=[]):  # a load draws nothing, whichever way it takes
            model = _create(config, classes, model_kwargs)
        model.load_state_dict(state, assign=True)
    if num_classes:
        model.reset_classifier(num_classes)  # type: ignore[operator]
    return model.to(device=device, dtype=dtype)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Map a safetensors file into memory, on the CPU.

    Raises:
        ReleaseError: when it is missing, truncated or no safetensors file.
    """
    try:
        return load_file(file)
    except FileNotFoundError:
        raise ReleaseError(f"{file.parent}: {file.name} is missing") from None
    except (SafetensorError, OSError) as error:
        raise ReleaseError(f"{file}: damaged or no safetensors file: {error}") from None


def _create(
    config: Mapping[str, Any], num_classes: int, model_kwargs: Mapping[str, Any], weights: Path | None = None
) -> nn.Module:
    arguments = {**config["model_args"], **model_kwargs}
    cfg = pretrained_cfg_of(config)
    if (
        weights is not None
    ):  # by file: `local-dir:` of timm below 1.0.29 fails beside a second safetensors file
        arguments["pretrained"], cfg["file"] = True, str(weights)
    return backbones.create(config["architecture"], num_classes=num_classes, pretrained_cfg=cfg, **arguments)


def _on_meta(config: Mapping[str, Any], num_classes: int, model_kwargs: Mapping[str, Any]) -> nn.Module:
    try:
        with torch.device("meta"), _SkipInitialisation():
            return _create(config, num_classes, model_kwargs)
    except ZooError:  # some architectures compute with values while they are built: then with storage
        with torch.random.fork_rng(devices=[]):
            return _create(config, num_classes, model_kwargs)


_FILLS = frozenset(
    getattr(Tensor, name)
    for name in (
        "zero_",
        "fill_",
        "copy_",
        "normal_",
        "uniform_",
        "erfinv_",
        "mul_",
        "add_",
        "div_",
        "clamp_",
    )
)


class _SkipInitialisation(TorchFunctionMode):
    """Leaves out what only fills tensors of the meta device, which have no values."""

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS and args[0].is_meta:
            return args[0]
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _fill_buffers(model: nn.Module) -> bool:
    """Give non-persistent buffers storage and values; False where the model cannot compute them by itself."""
    placeholders = []
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                empty = torch.empty_like(buffer, device="cpu")
                setattr(module, name, empty)
                placeholders.append((module, name, empty))
    if not placeholders:
        return True
    for module in model.modules():
        if hasattr(module, "init_non_persistent_buffers"):  # timm from 1.0.23 on
            module.init_non_persistent_buffers()  # type: ignore[operator]
    # Filled means replaced or written to; anything else would be uninitialised memory.
    return all(getattr(m, name) is not empty or empty._version > 0 for m, name, empty in placeholders)


def _mismatch(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """Describe how the tensors differ from what the model needs; '' when they do not."""
    shapes = [
        f"{key} is {list(found[key].shape)} instead of {list(expected[key].shape)}"
        for key in expected
        if key in found and found[key].shape != expected[key].shape
    ]
    problems = {
        "missing": [key for key in expected if key not in found],
        "unexpected": [key for key in found if key not in expected],
        "other shape": shapes,
    }
    return "; ".join(f"{kind}: {_some(keys)}" for kind, keys in problems.items() if keys)


def _some(names: list[str], limit: int = 5) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
