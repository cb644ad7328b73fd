"""`zoo.convert`: from the authors' file to a release folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import timm
import torch
from torch import Tensor

from zoo.config import dump_yaml, parse
from zoo.conversion.architecture import (
    FLOATS,
    build,
    complete,
    expected,
    find_architecture,
    is_linear,
    split_classifier,
)
from zoo.conversion.classes import Order, agreement, check_order, read_classes
from zoo.conversion.families import FAMILIES, Family, Part
from zoo.conversion.fetch import PUBLISHED, fetch, published
from zoo.conversion.layout import Parts, sort_out, to_timm
from zoo.conversion.options import Encoder, Given, Stated, choose_preprocess, default_name, read_stated
from zoo.conversion.read import Checkpoint, read_checkpoint, summary
from zoo.errors import ReleaseError, did_you_mean
from zoo.files import RUNS, is_file
from zoo.modules.centers import Centers
from zoo.release import Release, format, provenance
from zoo.release.build import check_arguments
from zoo.release.write import write_release

UNKNOWN_COUNT = -1  # of a class whose number of training images is not known

_IMAGENET_1K = "ImageNet-1k"  # what all published checkpoints that are known here were trained on
_ENCODERS = {"query": Part.QUERY, "momentum": Part.MOMENTUM}
_CENTERS = {"query": Part.CENTERS, "momentum": Part.MOMENTUM_CENTERS}


def convert(
    file: str | Path,
    family: str | None = None,
    out: str | Path | None = None,
    *,
    arch: str | None = None,
    name: str | None = None,
    encoder: Encoder = "query",
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
    description: str | None = None,
    leave_out: Sequence[str] = (),
) -> Release:
    """Make a release of a checkpoint that another project's code has written.

    Nothing in the file is executed. Every key is understood or the conversion fails: what is not released,
    such as heads, queues and the other encoder, is listed in recipe.yaml under `converted.left_out`.

    Args:
        file: a checkpoint of torch.save, or .safetensors; or the name of a checkpoint that its authors
            publish, "resnet50.moco_v2_800ep", which is then fetched: see `zoo.conversion.PUBLISHED`.
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
        description: the card's paragraph; written from the facts when None.
        leave_out: keys of the file to leave out although they are unknown, or shell patterns of them, such as
            "decoder.*" or "*.attn_mask".

    Raises:
        ReleaseError: when the file cannot be fetched, or read without running its code; for keys that are
            not understood, missing or of another shape, listing them and the family or architecture that
            fits; without `arch`, when several fit or none does; for what contradicts the file's own words.
        ZooError: for an unknown architecture, or labels and counts that cannot be read.
    """
    if not is_file(file) and (family is None or str(file) in PUBLISHED):
        entry = published(str(file))
        family, arch, name = family or entry.family, arch or entry.arch, name or str(file)
        dataset = _IMAGENET_1K if dataset is None else dataset
        file = fetch(str(file))
    if family is None:
        raise ReleaseError(f"{file}: whose layout? Give its family, one of {', '.join(FAMILIES)}: --family")
    if family not in FAMILIES:
        raise ReleaseError(
            f'family: found "{family}", expected one of {", ".join(FAMILIES)}.'
            f"{did_you_mean(family, FAMILIES)}"
        )
    known, file = FAMILIES[family], Path(file)
    options = {
        "name": name or (None if arch is None else default_name(arch, family, file.name)),
        "encoder": encoder,
        "label_order": label_order,
        "size": size,
        "crop_pct": crop_pct,
        "interpolation": interpolation,
        "mean": _plain(mean),
        "std": _plain(std),
        "dataset": "not recorded" if dataset is None else dataset,
        "description": description,
    }
    given = parse(Given, options, "convert", ReleaseError)
    if arch is not None and "." in arch:
        raise ReleaseError(
            f'arch: found "{arch}", expected an architecture without the tag of its weights:'
            f' "{arch.partition(".")[0]}"'
        )
    if license is not None:
        provenance.check_license(license)
    check_arguments(model_args or {})  # `pretrained` would have timm fetch weights of its own
    target = None if out is None and given.name is None else _target(out, given.name)

    classes = read_classes(labels, class_counts)
    checkpoint = read_checkpoint(file)
    stated = read_stated(checkpoint.settings if family == "timm" else {}, str(file))
    try:
        parts = sort_out(checkpoint.tensors, family, leave_out)
        taken = _take(parts, family, given, checkpoint, stated, arch, model_args or {})
        model = build(taken.arch, taken.args, taken.tensors)
        centers = _centers(taken, parts)
        preprocess = choose_preprocess(
            model, taken.args, centers, family=known, given=given, stated=stated, grey=taken.grey
        )
        if centers is not None and taken.head:
            whole = build(taken.arch, taken.args, taken.tensors | taken.head, len(centers.weight))
            centers = centers if is_linear(model, whole, centers, preprocess.input_size) else None
        order = given.label_order or (stated.label_order if family == "timm" else "plain")
        centers = _counted(classes.counts.get(order or "plain"), centers)
        class_names = _named(classes.names.get(order or "plain"), centers)
        if centers is not None and classes.natural is not None:
            check_order(order, classes, agreement(classes, model, centers, preprocess))
    except ReleaseError as error:
        raise ReleaseError(f"{file}: {error}") from None

    numbered = order if centers is not None and classes.natural is not None else None
    name = given.name or default_name(taken.arch, family, file.name)
    text = description or _describe(file.name, known, given, checkpoint, centers, numbered)
    objective: dict[str, Any] = {"name": known.objective}
    if family == "ft":
        objective["feature_transform"] = True  # the settings are not in the file
    recipe = {
        "name": name,
        "description": text,
        "converted": {
            "file": file.name,
            "sha256": format.sha256(file),
            "family": family,
            "repository": known.repository,
            "encoder": encoder,
            "epoch": checkpoint.epoch,
            "label_order": numbered,
            **_accounted(parts, taken, given, checkpoint, centers),
        },
        "backbone": {"arch": taken.arch, "args": taken.args},
        "objective": objective,
    }
    return write_release(
        target or _target(None, name),
        name=name,
        encoder=model,
        arch=taken.arch,
        model_args=taken.args,
        preprocess=preprocess,
        class_names=class_names,
        centers=centers,
        objective=known.objective,
        dataset={"name": given.dataset},
        recipe_text=dump_yaml(recipe),
        metrics={"training": {}, "evaluations": []},
        description=text,
        license=license or known.license,
    )


def _plain(values: Any) -> Any:
    """Return numbers, one or an array, as a list; whether they fit is checked with the rest."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if values is None or isinstance(values, str):
        return values
    return [*values] if isinstance(values, Iterable) else [values]


def _target(out: str | Path | None, name: str | None) -> Path:
    target = Path(out) if out is not None else RUNS / str(name)
    if format.holds_release(target):
        raise ReleaseError(f'"{target}" holds a release already; choose another --out')
    return target


class _Taken(NamedTuple):
    """What becomes the encoder, and of a timm model the rest.

    Attributes:
        arch: its architecture.
        args: and the arguments to build it with.
        tensors: of the model without classes.
        head: what a timm model with classes has besides; else empty.
        centers: weight `[C, D_f]`, bias `[C]` or none, before they are checked; empty where there are none.
        grey: whether it took images of one channel.
    """

    arch: str
    args: dict[str, Any]
    tensors: dict[str, Tensor]
    head: dict[str, Tensor]
    centers: dict[str, Tensor]
    grey: bool


def _take(
    parts: Parts,
    family: str,
    given: Given,
    checkpoint: Checkpoint,
    stated: Stated,
    arch: str | None,
    model_args: Mapping[str, Any],
) -> _Taken:
    """Find out which architecture the chosen encoder is of, and name its tensors as timm does."""
    known, found = FAMILIES[family], parts.found.get(_ENCODERS[given.encoder])
    if found is None:
        other = next((key for key, part in _ENCODERS.items() if part in parts.found), None)
        hint = f"; choose --encoder {other}" if other else ""
        names = ", ".join(part.value for part in parts.found)
        raise ReleaseError(f"holds no {given.encoder} encoder, only {names}{hint}")
    head = dict[str, Tensor]()
    centers = parts.found.get(_CENTERS[given.encoder], {})
    if family == "timm":
        named = str(stated.model or checkpoint.arch).partition(".")[0]
        if timm.is_model(named):
            if stated.model and arch not in (None, named):
                raise ReleaseError(f'arch: found "{arch}", but the file says {named}')
            arch = arch or named
        if arch is None:
            raise ReleaseError("does not say which architecture of timm it is of; give its name: --arch ARCH")
        args = {**stated.model_args(arch), **model_args}
        check_arguments(args)
        tensors, head, centers = split_classifier(found, arch, args)
    else:
        args = {**known.arguments(found), **model_args}
        found = to_timm(found)
        arch = find_architecture(found, arch, checkpoint.arch, args, family=known)
        tensors = complete(found, expected(arch, args))
    grey = any(tensors[key].shape != value.shape for key, value in found.items() if key in tensors)
    return _Taken(arch, args, tensors, head, centers, grey)


def _centers(taken: _Taken, parts: Parts) -> Centers | None:
    if not taken.centers:
        return None
    weight = taken.centers.get("weight", torch.empty(0))
    bias = taken.centers.get("bias")
    prototypes = next(iter(parts.found.get(Part.PROTOTYPES, {}).values()), None)
    shapes = {key: [*value.shape] for key, value in taken.centers.items()}
    classes = [*weight.shape[:1]]
    if not shapes.keys() <= {"weight", "bias"} or weight.ndim != 2 or shapes.get("bias", classes) != classes:
        raise ReleaseError(f"centers: found {shapes}, expected weight [C, D] and bias [C]")
    bias = weight.new_zeros(classes if weight.numel() else 0) if bias is None else bias
    for tensor in (weight, bias, *([] if prototypes is None else [prototypes])):
        if tensor.dtype not in FLOATS or not torch.isfinite(tensor).all():
            raise ReleaseError(f"centers: found {tensor.dtype}, or numbers that are not finite")
    counts = torch.full((len(weight),), UNKNOWN_COUNT)
    return Centers(weight.float(), bias.float(), counts, None if prototypes is None else prototypes.float())


def _named(names: list[str] | None, centers: Centers | None) -> list[str]:
    if names is None:
        return [] if centers is None else [str(index) for index in range(len(centers.weight))]
    if centers is not None and len(names) != len(centers.weight):
        raise ReleaseError(f"found {len(names)} labels, expected {len(centers.weight)}")
    return names


def _counted(counts: list[int] | None, centers: Centers | None) -> Centers | None:
    if counts is None:
        return centers
    if centers is None:
        raise ReleaseError("class counts are given, but the file has no centers")
    if len(counts) != len(centers.weight):
        raise ReleaseError(f"found {len(counts)} class counts, expected {len(centers.weight)}")
    return centers._replace(class_counts=torch.tensor(counts))


def _describe(
    file: str,
    family: Family,
    given: Given,
    checkpoint: Checkpoint,
    centers: Centers | None,
    order: Order | None,
) -> str:
    text = (
        f"The {given.encoder} encoder of `{file}`, a checkpoint in the layout of {family.repository}, "
        "converted to this format; nothing was trained here."
    )
    if checkpoint.epoch is not None:
        text += f" The file says epoch {checkpoint.epoch}."
    if centers is not None:
        text += " Its class centers are the linear classifier that the file holds on the encoder's features."
        if order is not None:
            text += f" Its classes are named in {order} order."
        if (centers.class_counts < 0).any():
            text += " How many training images each class had is not known: `class_counts` is -1."
        if centers.prototypes is not None:
            text += " `prototypes` are the file's class prototypes, in the space of its projection."
    return text + " None of its authors' figures was measured again, so none is stated."


def _accounted(
    parts: Parts, taken: _Taken, given: Given, checkpoint: Checkpoint, centers: Centers | None
) -> dict[str, dict[str, Any]]:
    """Say what of the file is in the release, by its number of tensors, and what is not, by its keys."""
    kept = [
        _ENCODERS[given.encoder],
        *([] if centers is None else [_CENTERS[given.encoder], Part.PROTOTYPES]),
    ]
    tensors = {part.value: len({*parts.found[part]} - {*taken.head}) for part in kept if part in parts.found}
    left_out = {
        part.value: f"{len(found)} tensors" for part, found in parts.found.items() if part not in kept
    }
    groups: dict[str, list[str]] = {}
    for key, what in {**parts.left_out, **checkpoint.entries}.items():
        groups.setdefault(what, []).append(key)
    if taken.head:  # of a timm model, whose file does not tell it from the encoder
        if centers is None:
            groups["classifier that is not one linear layer on the features"] = [*taken.head]
        else:
            tensors[_CENTERS[given.encoder].value] = len(taken.head)
    return {
        "tensors": tensors,
        "left_out": left_out | {what: summary(keys, limit=4) for what, keys in groups.items()},
    }
