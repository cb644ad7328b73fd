"""`zoo.convert`: from the authors' file to a release folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

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
    QUERY,
    Family,
)
from zoo.conversion.read import fetch, read_checkpoint, summary
from zoo.conversion.tensors import FLOATS, build, fit_encoder, sort_out, split_classifier, to_timm
from zoo.errors import ReleaseError, did_you_mean
from zoo.files import RUNS, is_file
from zoo.modules.centers import Centers
from zoo.conversion.published import PUBLISHED
from zoo.release import Preprocess, Release, format, provenance
from zoo.release.build import check_arguments
from zoo.release.schema import MAX_NAME, Input
from zoo.release.write import write_release

_PARTS = {"query": (QUERY, CENTERS), "momentum": (MOMENTUM, MOMENTUM_CENTERS)}
_SMALL = 64  # pixels; architectures of this size and below were made for CIFAR


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
        if self.dataset.startswith("torch/"):
            return "plain"
        return None if "/" in self.dataset else "natural"

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

    Nothing in the file is executed. Every key is understood or the conversion fails: what is not released,
    such as heads, queues and the other encoder, is listed in recipe.yaml under `converted.left_out`.

    Args:
        file: a checkpoint of torch.save, or .safetensors; or the name of a checkpoint that its authors
            publish, "resnet50.moco_v2_800ep", which is then fetched: see `zoo.conversion.published`.
        family: whose layout it has: "moco" (v1, v2), "moco-v3", "paco", "gpaco", "ft" (and PyContrast),
            "pico", "lightly" or "solo-learn"; "timm" for any timm model, whoever trained it: its classifier,
            if that is one linear layer, becomes the centers. Known of a published checkpoint, and so are its
            arch, name and data.
        out: the release folder to make; `runs/NAME` when None.
        arch: the encoder's architecture in timm, e.g. "resnet50", "cifar_resnet32", "vit_small_patch16_224";
            one that the family's authors use, for others of the same shapes compute something else. When
            None, what the file names where that fits, else the only one of the family's that fits.
        name: of the weights, `arch.tag`; made of arch, family and the file's name when None.
        encoder: "query" for the trained encoder, "momentum" for its moving average (key encoder, teacher,
            timm's `state_dict_ema`).
        model_args: arguments of the architecture, e.g. `{"img_size": 32, "patch_size": 4}`. What the family
            implies, e.g. the 12 heads of MoCo v3's ViT-S, or a file of timm's train.py says, is known.
        labels: names of the centers' classes: themselves, a text file with one a line, or a folder or data
            spec whose classes they are; "0", "1", ... when None.
        label_order: how the classes of a folder were numbered in training, where that differs: "natural" (1,
            2, 10, as timm's train.py does it) or "plain" (1, 10, 2, as torchvision does it). None: as the
            family's code or the file says. Images at hand are asked whether they agree.
        class_counts: training images of each class: themselves, a text file with one a line, or a folder or
            data spec whose training split is counted; -1, unknown, when None.
        size: pixels of the input, where they are not the authors', or the file's; so too:
        crop_pct: part of the resized image that the central crop keeps.
        interpolation: "bilinear" or "bicubic".
        mean: of each channel, for pixels in [0, 1]; one number for all.
        std: of each channel.
        dataset: what the encoder was trained on, in words; "not recorded" when None.
        license: of the weights, as the Hub writes it, or another one's name; that of the authors' repository
            when None, so give yours for weights of your own.
        leave_out: keys of the file to leave out although they are unknown, or shell patterns of them, such as
            "decoder.*" or "*.attn_mask".

    Raises:
        ReleaseError: when the file cannot be fetched, or read without running its code; for keys that are
            not understood, missing or of another shape, listing them and the family or architecture that
            fits; without `arch`, when several fit or none does; for what contradicts the file's own words.
        ZooError: for an unknown architecture, or labels and counts that cannot be read.
    """
    if not is_file(file) and (family is None or str(file) in PUBLISHED):
        name, file = name or str(file), fetch(published := str(file))
        entry = PUBLISHED[published]
        family, arch, dataset = family or entry.family, arch or entry.arch, dataset or "ImageNet-1k"
    choices: list[tuple[str, Any, Iterable[str]]] = [
        ("--family", family, FAMILIES),
        ("--encoder", encoder, _PARTS),
        ("--label-order", label_order or "plain", ("natural", "plain")),
    ]
    for option, chosen, known in choices:
        if chosen not in known:
            near = did_you_mean(chosen, known)
            raise ReleaseError(f"{option}: found {chosen}, expected one of {', '.join(known)}.{near}")
    project = FAMILIES[str(family)]
    file, arch = Path(file), arch and arch.partition(".")[0]  # a tag is of other weights
    if license is not None:
        provenance.check_license(license)
    check_arguments(model_args or {})  # `pretrained` would have timm fetch weights of its own
    checkpoint = read_checkpoint(file)
    try:
        settings = checkpoint.settings if family == "timm" else {}  # others' are of other programs
        own = {key: settings[key] for key in Stated.model_fields if settings.get(key) is not None}
        plain = {key: [*value] if isinstance(value, tuple) else value for key, value in own.items()}
        stated = parse(Stated, plain, "args", ReleaseError)
        parts = sort_out(checkpoint.tensors, str(family), leave_out)
        part, its_centers = _PARTS[encoder]
        if part not in parts.found:
            raise ReleaseError(f"holds no {part}, only {', '.join(parts.found)}; choose another --encoder")
        if family == "timm":
            arch = _timms_architecture(arch, stated, checkpoint.arch)
            args = {**stated.model_args(arch), **(model_args or {})}
            check_arguments(args)
            given = parts.found[part]
            tensors, head, linear = split_classifier(given, arch, args)
        else:
            args = {**project.arguments(parts.found[part]), **(model_args or {})}
            given = to_timm(parts.found[part])
            arch, tensors = fit_encoder(given, project, arch, checkpoint.arch, args)
            head, linear = {}, parts.found.get(its_centers, {})
        model = build(arch, args, tensors)
        centers = _centers(linear, parts.found.get(PROTOTYPES, {}).get("prototypes"))
        preprocess = _preprocess(
            model,
            args,
            project,
            len(centers.weight) if centers else 0,
            given={
                "size": size,
                "crop_pct": crop_pct,
                "interpolation": interpolation,
                "mean": mean,
                "std": std,
            },
            stated=stated,
            grey=any(given[key].shape != tensors[key].shape for key in given if key in tensors),
        )
        if centers is not None and head:
            whole = build(arch, args, tensors | head, len(centers.weight))
            centers = centers if _is_linear(model, whole, centers, preprocess.input_size) else None
        order = label_order or (stated.label_order if family == "timm" else "plain")
        class_names, counts, numbered = read_classes(
            labels,
            class_counts,
            order,
            len(centers.weight) if centers else 0,
            lambda image: _classify(image, model, centers, preprocess),
        )
    except ReleaseError as error:
        raise ReleaseError(f"{file}: {error}") from None
    if centers is not None:
        centers = centers._replace(class_counts=torch.tensor(counts))
    kinds = {**parts.kinds, **checkpoint.entries}
    if head:  # of a timm model, whose file does not tell it from the encoder
        parts.found[part] = {key: value for key, value in given.items() if key not in head}
        parts.found[its_centers] = head
        if centers is None:
            kinds |= dict.fromkeys(head, "classifier that is not one linear layer on the features")
    kept = {part} | ({its_centers, PROTOTYPES} if centers else set())
    left_out: dict[str, list[str]] = {}
    for key, what in kinds.items():
        left_out.setdefault(what, []).append(key)

    stem = re.sub(r"(\.(pth|pt|tar|ckpt|bin|safetensors|th))+$", "", file.name.lower())
    tag = "_".join(word for word in re.split(r"[^a-z0-9]+", f"{family}_{stem}") if word)
    name = name or f"{arch}.{tag}"[:MAX_NAME].rstrip("_")
    target = RUNS / name if out is None else Path(out)
    if format.holds_release(target):
        raise ReleaseError(f'"{target}" holds a release already; choose another --out')
    text = (
        f"The {encoder} encoder of `{file.name}`, a checkpoint in the layout of {project.repository}, "
        "converted to this format; nothing was trained here, and no figure of its authors was measured again."
    )
    recipe = {
        "name": name,
        "description": text,
        "converted": {
            "file": file.name,
            "sha256": format.sha256(file),
            "family": family,
            "repository": project.repository,
            "encoder": encoder,
            "epoch": checkpoint.epoch,
            "label_order": numbered,
            "tensors": {what: len(found) for what, found in parts.found.items() if what in kept},
            "left_out": {what: summary(keys, limit=4) for what, keys in left_out.items() if what not in kept},
        },
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


def _timms_architecture(arch: str | None, stated: Stated, named: str | None) -> str:
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
    weight, bias = linear.get("weight", torch.empty(0)), linear.get("bias")
    bias = weight.new_zeros(weight.shape[:1]) if bias is None else bias
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
    classes: int,
    *,
    given: Mapping[str, Any],
    stated: Stated,
    grey: bool,
) -> Preprocess:
    """Return how the authors evaluate: timm's default for an architecture is that of other weights.

    They all resize larger images to 256 pixels and crop 224, bilinearly; those for CIFAR stay as they are.
    What an architecture was made for is the `img_size` that it is built with, before timm's default. Weights
    of no project known were trained as the file says, or else are taken to have been with that default.
    """
    default = timm.data.resolve_model_data_config(model)
    cfg: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    side = args.get("img_size", cfg["input_size"])
    size = side[-1] if isinstance(side, list | tuple) else side
    found = {key: default[key] for key in ("crop_pct", "interpolation", "mean", "std")}
    if project.architectures:
        small, made_for_cifar = size <= _SMALL, int(cfg["input_size"][-1]) <= _SMALL
        own = (found["mean"], found["std"]) if made_for_cifar else IMAGENET
        mean, std = project.by_classes.get(classes, (project.cifar or own) if small else IMAGENET)
        size = size if small or cfg.get("fixed_input_size") else 224
        found = {"crop_pct": 1.0 if small else 0.875, "interpolation": "bilinear", "mean": mean, "std": std}
    found["input_size"] = (stated.size or size) if given["size"] is None else given["size"]
    for key in ("crop_pct", "interpolation", "mean", "std"):
        said, files = given[key], getattr(stated, key)
        if key in ("mean", "std"):
            said, files = _channels(said), _channels(files)
            if said and files and said != files:
                raise ReleaseError(f"{key}: found {said}, but the file says {files}")
            if grey and not (said or files):
                raise ReleaseError(
                    f"the encoder takes one channel; give the {key} of its pixels: --{key} NUMBER"
                )
            found[key] = [*found[key]]
        found[key] = (files or found[key]) if said is None else said
    checked = parse(Input, found, "convert", ReleaseError)
    return Preprocess(
        checked.input_size,
        checked.crop_pct,
        checked.interpolation,
        tuple(checked.mean),
        tuple(checked.std),
    )


def _channels(values: Any) -> Any:
    """Return one number for each of three channels; what is no number is refused with the rest."""
    values = values.tolist() if hasattr(values, "tolist") else values
    values = [*values] if isinstance(values, Iterable) and not isinstance(values, str) else values
    one = values[0] if isinstance(values, list) and len(values) == 1 else values
    return [one] * 3 if isinstance(one, int | float) else values


def _is_linear(encoder: nn.Module, model: nn.Module, centers: Centers, size: int) -> bool:
    """Whether a model's logits are its encoder's features times the centers, seen on images of noise."""
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, found = encoder(images), model(images)
        if features.shape[1:] != centers.weight.shape[1:]:
            return False
        logits = centers.logits(features)
    return torch.allclose(found, logits, rtol=1e-3, atol=1e-4 * float(logits.abs().max()))


def _classify(image: Image.Image, encoder: nn.Module, centers: Centers | None, preprocess: Preprocess) -> int:
    assert centers is not None  # nothing else has classes
    transform = timm.data.create_transform(
        input_size=(3, preprocess.input_size, preprocess.input_size),
        interpolation=preprocess.interpolation,
        crop_pct=preprocess.crop_pct,
        mean=preprocess.mean,
        std=preprocess.std,
    )
    with torch.no_grad():
        return int(centers.logits(encoder(transform(image)[None])).argmax())
