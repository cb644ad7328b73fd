"""`zoo.convert`: from the authors' file to a release folder."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn

from zoo.config import Config, dump_yaml, parse
from zoo.conversion.classes import Order, read_classes
from zoo.conversion.families import (
    CENTERS,
    FAMILIES,
    IMAGENET,
    MOMENTUM,
    MOMENTUM_CENTERS,
    PROTOTYPES,
    PUBLISHED,
    QUERY,
    Family,
)
from zoo.conversion.read import Checkpoint, fetch, read_checkpoint, summary
from zoo.conversion.tensors import FLOATS, Parts, build, fit_encoder, sort_out, split_classifier, to_timm
from zoo.errors import ReleaseError, did_you_mean
from zoo.files import RUNS, is_file
from zoo.modules.centers import Centers
from zoo.release import Preprocess, Release, format
from zoo.release.release import check_arguments
from zoo.release.schema import MAX_NAME, Input
from zoo.release.write import write_release

_PARTS = {"query": (QUERY, CENTERS), "momentum": (MOMENTUM, MOMENTUM_CENTERS)}
_SMALL = 64  # pixels; architectures of this size and below were made for CIFAR


_DESCRIPTION = (
    "The {} encoder of `{}`, a checkpoint in the layout of {}, converted to this format; nothing was trained "
    "here, and no figure of its authors was measured again."
)


class Stated(Config):
    """What timm's train.py writes into a checkpoint's `args`, as far as it changes what is computed."""

    model: str | None = None
    model_kwargs: dict[str, Any] = {}
    gp: str | None = None
    bn_eps: float | None = None
    img_size: int | None = None
    input_size: int | list[int] | None = None  # DeiT's code has one number
    crop_pct: float | None = None
    crop_mode: Literal["center", ""] | None = None  # a release has no other
    interpolation: str | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    class_map: str | None = None
    dataset: str | None = None

    @property
    def size(self) -> int | None:
        """Pixels of the input."""
        found = self.input_size or self.img_size
        return found[-1] if isinstance(found, list) else found

    @property
    def label_order(self) -> Order | None:
        """How classes were numbered: timm reads folders in natural order, torchvision in plain order."""
        if self.class_map != "" or self.dataset is None:  # a list of the user's, or no file of train.py
            return None
        return "plain" if self.dataset.startswith("torch/") else None if "/" in self.dataset else "natural"

    def model_args(self, arch: str) -> dict[str, Any]:
        """Arguments that the architecture was built with."""
        args = {"global_pool": self.gp, "bn_eps": self.bn_eps, **self.model_kwargs}
        cfg = timm.get_pretrained_cfg(arch)
        if cfg is not None and cfg.fixed_input_size and self.size not in (None, cfg.input_size[-1]):
            args.setdefault("img_size", self.size)
        return {key: value for key, value in args.items() if value is not None}


def convert(
    file: str | Path,
    family: str | None = None,
    out: str | Path | None = None,
    *,
    arch: str | None = None,
    name: str | None = None,
    encoder: Literal["query", "momentum"] = "query",
    model_args: Mapping[str, Any] | None = None,
    labels: Sequence[str] | str | Path | None = None,
    label_order: Order | None = None,
    class_counts: Sequence[int] | str | Path | None = None,
    size: int | None = None,
    crop_pct: float | None = None,
    interpolation: Literal["bilinear", "bicubic"] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    dataset: str | None = None,
    license: str | None = None,
    leave_out: Sequence[str] = (),
) -> Release:
    """Make a release of a checkpoint that another project's code has written.

    Nothing in the file is executed. Every key is understood or the conversion fails; what is not released is
    listed in recipe.yaml under `converted.left_out`.

    Args:
        file: a checkpoint of torch.save, or .safetensors; or a name in `PUBLISHED`, which is fetched.
        family: whose layout it has, a key of `FAMILIES`; "timm" for any timm model, whoever trained it.
        out: the release folder to make; `runs/NAME` when None.
        arch: the encoder's architecture in timm; when None, what the file names, else the only one that fits.
        name: of the weights, `arch.tag`; made of arch, family and the file's name when None.
        encoder: "query" for the trained encoder, "momentum" for its moving average.
        model_args: arguments of the architecture, beside what the family implies or the file says.
        labels: classes of the centers: names, a file with one a line, or a folder or data spec that has them.
        label_order: how a folder's classes were numbered, where the file or family does not say it.
        class_counts: training images of each class, given as `labels` are; -1, unknown, when None.
        size: pixels of the input, where they are not the authors', or the file's; so too:
        crop_pct: part of the resized image that the central crop keeps.
        interpolation: "bilinear" or "bicubic".
        mean: of each channel, for pixels in [0, 1]; one number for all.
        std: of each channel.
        dataset: what the encoder was trained on, in words; "not recorded" when None.
        license: of the weights, as the Hub writes it; that of the authors' repository when None.
        leave_out: keys of the file to leave out although they are unknown, or shell patterns of them.

    Raises:
        ZooError: for a file that cannot be fetched, or read without running its code; keys that are not
            understood, missing or of another shape; what does not fit, or contradicts the file's own words.
    """
    if not is_file(file) and (family is None or str(file) in PUBLISHED):
        name, file = name or str(file), fetch(published := str(file))
        entry = PUBLISHED[published]
        family, arch, dataset = family or entry.family, arch or entry.arch, dataset or "ImageNet-1k"
    family, file, arch = str(family), Path(file), arch and arch.partition(".")[0]
    _check_options(family, encoder, label_order, license, model_args or {})
    project, checkpoint = FAMILIES[family], read_checkpoint(file)
    try:
        parts = sort_out(checkpoint.tensors, family, leave_out)
        part, its_centers = _PARTS[encoder]
        if part not in parts.found:
            raise ReleaseError(f"holds no {part}, only {', '.join(parts.found)}; choose another --encoder")
        given, head = parts.found[part], dict[str, Tensor]()
        stated = _stated(checkpoint.settings if family == "timm" else {})  # others' are of other programs
        # the encoder, and the linear layer whose rows are class centers
        if family == "timm":
            arch = _timm_architecture(arch, stated, checkpoint.arch)
            args = {**stated.model_args(arch), **(model_args or {})}
            check_arguments(args)
            tensors, head, linear = split_classifier(given, arch, args)
        else:
            args = {**project.arguments(given), **(model_args or {})}
            given, linear = to_timm(given), parts.found.get(its_centers, {})
            arch, tensors = fit_encoder(given, project, arch, checkpoint.arch, args)
        model = build(arch, args, tensors)
        centers = _centers(linear, parts.found.get(PROTOTYPES, {}).get("prototypes"))
        # how an image becomes its input
        user: dict[str, Any] = {"input_size": size, "crop_pct": crop_pct, "interpolation": interpolation}
        user |= {"mean": _channels(mean, "mean"), "std": _channels(std, "std")}
        grey = any(given[key].shape != tensors[key].shape for key in given.keys() & tensors.keys())
        preprocess = _preprocess(model, args, project, centers, user, stated, grey)
        if centers is not None and head:
            whole = build(arch, args, tensors | head, len(centers.weight))
            centers = centers if _is_linear(model, whole, centers, preprocess.input_size) else None
        # whose classes the centers are
        order = label_order or (stated.label_order if family == "timm" else "plain")
        classes, classify = len(centers.weight) if centers else 0, _classifier(model, centers, preprocess)
        class_names, counts, numbered = read_classes(labels, class_counts, order, classes, classify)
    except ReleaseError as error:
        raise ReleaseError(f"{file}: {error}") from None
    if centers is not None:
        centers = centers._replace(class_counts=torch.tensor(counts))
    name = name or _name_of(arch, family, file)
    target = RUNS / name if out is None else Path(out)
    if format.holds_release(target):
        raise ReleaseError(f'"{target}" holds a release already; choose another --out')
    text = _DESCRIPTION.format(encoder, file.name, project.repository)
    recipe = {
        "name": name,
        "description": text,
        "converted": _record(file, family, encoder, numbered, checkpoint, parts, head, centers is not None),
        "backbone": {"arch": arch, "args": args},
        "objective": {"name": project.objective, **({"feature_transform": True} if family == "ft" else {})},
    }
    return write_release(
        target,
        name=name,
        encoder=model,
        arch=arch,
        model_args=args,
        preprocess=preprocess,
        class_names=class_names,
        centers=centers,
        objective=project.objective,
        dataset={"name": dataset or "not recorded"},
        recipe_text=dump_yaml(recipe),
        metrics={"training": {}, "evaluations": []},
        description=text,
        license=license or project.license,
    )


def _check_options(
    family: str, encoder: str, order: str | None, license: str | None, model_args: Mapping[str, Any]
) -> None:
    choices: list[tuple[str, str, Collection[str]]] = [("--family", family, FAMILIES)]
    choices += [("--encoder", encoder, _PARTS), ("--label-order", order or "plain", ("natural", "plain"))]
    for option, found, known in choices:
        if found not in known:
            near = did_you_mean(found, known)
            raise ReleaseError(f"{option}: found {found}, expected one of {', '.join(known)}.{near}")
    check_arguments(model_args)  # `pretrained` would have timm fetch weights of its own


def _name_of(arch: str, family: str, file: Path) -> str:
    stem = re.sub(r"(\.(pth|pt|tar|ckpt|bin|safetensors|th))+$", "", file.name.lower())
    tag = re.sub(r"[^a-z0-9]+", "_", f"{family}_{stem}").strip("_")
    return f"{arch}.{tag}"[:MAX_NAME].rstrip("_")


def _stated(settings: Mapping[Any, Any]) -> Stated:
    known = {key: settings[key] for key in Stated.model_fields if settings.get(key) is not None}
    plain = {key: [*value] if isinstance(value, tuple) else value for key, value in known.items()}
    return parse(Stated, plain, "args", ReleaseError)


def _timm_architecture(arch: str | None, stated: Stated, named: str | None) -> str:
    """Return the architecture of a timm model: what the file says, which the user may not contradict."""
    found = str(stated.model or named).partition(".")[0]
    known = found if timm.is_model(found) else None
    if known and stated.model and arch not in (None, known):
        raise ReleaseError(f'arch: found "{arch}", but the file says {known}')
    if not (arch or known):
        raise ReleaseError("does not say which architecture of timm it is of; give its name: --arch ARCH")
    return arch or str(known)


def _centers(linear: Mapping[str, Tensor], prototypes: Tensor | None) -> Centers | None:
    if not linear:
        return None
    weight = linear.get("weight", torch.empty(0))
    bias = linear.get("bias", weight.new_zeros(weight.shape[:1]))
    if not linear.keys() <= {"weight", "bias"} or weight.ndim != 2 or bias.shape != weight.shape[:1]:
        shapes = {key: [*value.shape] for key, value in linear.items()}
        raise ReleaseError(f"centers: found {shapes}, expected weight [C, D] and bias [C]")
    for tensor in (weight, bias, *([] if prototypes is None else [prototypes])):
        if tensor.dtype not in FLOATS or not torch.isfinite(tensor).all():
            raise ReleaseError(f"centers: found {tensor.dtype}, or numbers that are not finite")
    counts = torch.full((len(weight),), -1)  # unknown
    return Centers(weight.float(), bias.float(), counts, None if prototypes is None else prototypes.float())


def _preprocess(
    model: nn.Module,
    args: Mapping[str, Any],
    project: Family,
    centers: Centers | None,
    given: Mapping[str, Any],
    stated: Stated,
    grey: bool,
) -> Preprocess:
    """Return how the authors evaluate: timm's default for an architecture is that of other weights.

    They all resize larger images to 256 pixels and crop 224, bilinearly; those for CIFAR stay as they are.
    What an architecture was made for is the `img_size` that it is built with, before timm's default. Weights
    of no project known were trained as the file says, or else are taken to have been with that default.
    """
    cfg: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    side = args.get("img_size", cfg["input_size"])
    size = side[-1] if isinstance(side, list | tuple) else side
    found: dict[str, Any] = timm.data.resolve_model_data_config(model)
    if project.architectures:
        small, made_for_cifar = size <= _SMALL, int(cfg["input_size"][-1]) <= _SMALL
        own = (found["mean"], found["std"]) if made_for_cifar else IMAGENET
        classes = len(centers.weight) if centers else 0
        mean, std = project.by_classes.get(classes, (project.cifar or own) if small else IMAGENET)
        size = size if small or cfg.get("fixed_input_size") else 224
        found = {"crop_pct": 1.0 if small else 0.875, "interpolation": "bilinear", "mean": mean, "std": std}
    found |= {"input_size": stated.size or size, "mean": [*found["mean"]], "std": [*found["std"]]}
    for key, value in given.items():
        said = stated.size if key == "input_size" else getattr(stated, key)
        if key in ("mean", "std"):
            said = _channels(said, key)
            if value and said and value != said:
                raise ReleaseError(f"{key}: found {value}, but the file says {said}")
            if grey and not (value or said):
                raise ReleaseError(
                    f"the encoder takes one channel; give the {key} of its pixels: --{key} NUMBER"
                )
        found[key] = value if value is not None else said or found[key]
    checked = parse(Input, {key: found[key] for key in Input.model_fields}, "convert", ReleaseError)
    mean, std = tuple(checked.mean), tuple(checked.std)
    return Preprocess(checked.input_size, checked.crop_pct, checked.interpolation, mean, std)


def _channels(values: Any, name: str) -> list[float] | None:
    """Return one number for each of three channels."""
    try:
        found = None if values is None else np.atleast_1d(np.asarray(values, dtype=float)).tolist()
    except (TypeError, ValueError):
        raise ReleaseError(f"{name}: found {values!r}, expected one number or three") from None
    return found * 3 if found and len(found) == 1 else found


def _is_linear(encoder: nn.Module, model: nn.Module, centers: Centers, size: int) -> bool:
    """Whether a model's logits are its encoder's features times the centers, seen on images of noise."""
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, found = encoder(images), model(images)
        if features.shape[1:] != centers.weight.shape[1:]:
            return False
        logits = centers.logits(features)
    return torch.allclose(found, logits, rtol=1e-3, atol=1e-4 * float(logits.abs().max()))


def _classifier(
    encoder: nn.Module, centers: Centers | None, preprocess: Preprocess
) -> Callable[[Image.Image], int]:
    """Return what tells the class of an image."""
    size = (3, preprocess.input_size, preprocess.input_size)
    transform = timm.data.create_transform(**dataclasses.asdict(preprocess) | {"input_size": size})

    def classify(image: Image.Image) -> int:
        assert centers is not None  # nothing else has classes
        with torch.no_grad():
            return int(centers.logits(encoder(transform(image)[None])).argmax())

    return classify


def _record(
    file: Path,
    family: str,
    encoder: str,
    numbered: str | None,
    checkpoint: Checkpoint,
    parts: Parts,
    head: Mapping[str, Tensor],
    has_centers: bool,
) -> dict[str, Any]:
    """Return what a recipe says of a conversion: its file, what of it is released, and what was left out."""
    part, its_centers = _PARTS[encoder]
    found, kinds = {**parts.found}, {**parts.kinds, **checkpoint.entries}
    if head:  # of a timm model, whose file does not tell it from the encoder
        found[part] = {key: value for key, value in found[part].items() if key not in head}
        found[its_centers] = dict(head)
        if not has_centers:
            kinds |= dict.fromkeys(head, "classifier that is not one linear layer on the features")
    kept = {part, *([its_centers, PROTOTYPES] if has_centers else [])}
    left_out: dict[str, list[str]] = {}
    for key, what in kinds.items():
        left_out.setdefault(what, []).append(key)
    return {
        "file": file.name,
        "sha256": format.sha256(file),
        "family": family,
        "repository": FAMILIES[family].repository,
        "encoder": encoder,
        "epoch": checkpoint.epoch,
        "label_order": numbered,
        "tensors": {what: len(tensors) for what, tensors in found.items() if what in kept},
        "left_out": {what: summary(keys, limit=4) for what, keys in left_out.items() if what not in kept},
    }
