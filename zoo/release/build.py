"""From a release folder to a model: on the meta device, without initialisation, tensors assigned.

timm spends most of a load initialising weights that it then overwrites. Here a model is built without
storage, and the file's tensors become its parameters. The result is what timm would load, bit for bit.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from zoo import backbones
from zoo.errors import ReleaseError, ZooError, first_line
from zoo.release import configs
from zoo.release.format import CONFIG, WEIGHTS, check_sha256
from zoo.release.tensors import mismatch, read_header, read_tensors

# Of timm's factory's own arguments, those that a load may have.
_LOADING = {"features_only", "out_indices", "feature_cls", "feature_cfg", "scriptable"}
_LOADING |= {"exportable", "no_jit"}
# What timm's factory and builder take for themselves: sources of weights and code, not the architecture.
NO_ARGUMENTS = frozenset(
    {
        *inspect.signature(timm.create_model).parameters,
        *inspect.signature(timm.models.build_model_with_cfg).parameters,
        *("arch", "num_classes", "pruned", "features_only", "out_indices", "feature_cls", "device", "dtype"),
    }
    - {"kwargs"}
)


def build(
    folder: Path, config: Mapping[str, Any], num_classes: int, head: str | None, kwargs: Mapping[str, Any]
) -> nn.Module:
    """Return the model of `zoo.load`, see there; a `ReleaseError` names the wrong argument or file."""
    _check_request(config, num_classes, head, kwargs)
    weights, classes = folder / WEIGHTS, config["num_classes"] if head else 0
    try:
        model, names = check_fit(folder, config, classes)
        fits = True
    except ReleaseError:
        if not configs.is_plain(config):
            raise
        fits = False  # timm adapts files of its older versions
    with torch.random.fork_rng(devices=[]):  # a load draws nothing from the global generator
        if fits and not kwargs:
            expected = model.state_dict()
            state = read_tensors(weights, config["zoo"]["weights_sha256"])
            state = {name: state[name].to(expected[name].dtype) for name in names}
            model.load_state_dict(state, assign=True)
            if any(buffer.is_meta for buffer in model.buffers()):  # non-persistent ones are in no file
                model = _create(config, classes, {})
                model.load_state_dict(state, assign=True)
        else:  # arguments may change the tensors, as timm's versions did: it knows how to adapt them
            check_sha256(weights, config["zoo"]["weights_sha256"])
            try:
                if not fits and classes != config["num_classes"]:
                    # raises for what does not fit, which timm leaves out silently with another classifier
                    _create(config, config["num_classes"], kwargs, weights)
                model = _create(config, classes, kwargs, weights)
            except ZooError as error:
                raise ReleaseError(f"{weights}: {error}") from error
    if num_classes:
        model.reset_classifier(num_classes)  # type: ignore[operator]
    return model


def _check_request(
    config: Mapping[str, Any], num_classes: int, head: object, kwargs: Mapping[str, Any]
) -> None:
    name, arch = config["zoo"]["name"], config["architecture"]
    if refused := sorted(NO_ARGUMENTS - _LOADING & kwargs.keys()):
        raise ReleaseError(f"{refused[0]}: expected an argument of {arch}, e.g. drop_rate=0.1")
    if type(num_classes) is not int or num_classes < 0:
        raise ReleaseError(f"num_classes: found {num_classes!r}, expected 0 or more")
    if head not in (None, "centers"):
        raise ReleaseError(f'head: found {head!r}, expected None or "centers"')
    if bool(head) + bool(num_classes) + bool(kwargs.get("features_only")) > 1:
        raise ReleaseError(f'{name}: give one of num_classes=N, head="centers" and features_only=True')
    if head and not config["zoo"]["has_centers"]:
        raise ReleaseError(f"{name} has no centers: its objective learned none. Use num_classes=N")
    if head and not config["num_classes"]:
        raise ReleaseError(f"{name}: the classifier of {arch} is not one linear layer; see Release.centers")


def check_fit(folder: Path, config: Mapping[str, Any], num_classes: int) -> tuple[nn.Module, list[str]]:
    """Compare the weights' header with the architecture of `config`; no tensor is read or allocated.

    Returns the architecture, with the config's `num_classes` or 0, on the meta device, and the names of its
    tensors in the file. A `ReleaseError` says that there is no such architecture, that it does not take the
    config's arguments, or which tensors differ.
    """
    weights = folder / WEIGHTS
    header = read_header(weights)
    if num_classes == 0 and config["num_classes"]:
        ends = config["pretrained_cfg"]["classifier"] or []
        layers = {ends} if isinstance(ends, str) else {*ends}
        header = {name: info for name, info in header.items() if name.rpartition(".")[0] not in layers}
    try:
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"), _SkipInit():
                    model = _create(config, num_classes, {})
            except ZooError:  # some architectures of older timm compute with values while they are built
                model = _create(config, num_classes, {})
    except Exception as error:  # any of 1,400 constructors, given arguments that others chose
        raise ReleaseError(f"{folder / CONFIG}: {config['architecture']}: {first_line(error)}") from error
    if problem := mismatch(model.state_dict(), header):
        raise ReleaseError(f"{weights}: does not fit {config['architecture']}: {problem}")
    return model, list(header)


def check_arguments(model_args: Mapping[str, Any]) -> None:
    """Refuse, by a `ReleaseError`, arguments of an architecture that name other weights, or code."""
    if refused := sorted(NO_ARGUMENTS & model_args.keys()):
        raise ReleaseError(f"model_args: {', '.join(refused)} cannot be part of a release")


def _create(
    config: Mapping[str, Any], num_classes: int, kwargs: Mapping[str, Any], weights: Path | None = None
) -> nn.Module:
    check_arguments(config["model_args"])
    arguments = {**config["model_args"], **kwargs}
    cfg = configs.pretrained_cfg_of(config)
    if weights is not None:
        # by file: `local-dir:` of timm below 1.0.29 fails beside a second safetensors file
        arguments["pretrained"], cfg["file"] = True, str(weights)
    return backbones.create(config["architecture"], num_classes=num_classes, pretrained_cfg=cfg, **arguments)


_FILLS = {getattr(Tensor, f"{name}_") for name in ("zero", "fill", "copy", "normal", "uniform", "erfinv")}
_FILLS |= {Tensor.mul_, Tensor.add_, Tensor.div_, Tensor.clamp_}


class _SkipInit(TorchFunctionMode):
    """Leaves out what only fills tensors: on the meta device they have no values, and a file has them all."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FILLS and args[0].is_meta:
            return args[0]
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
