"""`zoo.convert`: from another project's checkpoint to a release folder."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from os.path import isfile
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from timm.utils.misc import natural_key
from torch import Tensor, nn

from zoo import backbones
from zoo.config import dump_yaml, parse
from zoo.convert import families as kinds
from zoo.convert.families import FAMILIES, PUBLISHED, Family
from zoo.convert.read import fetch, read_checkpoint
from zoo.convert.tensors import FLOATS, build, sort_out, split_classifier
from zoo.data import open_dataset
from zoo.data.any_data import as_data
from zoo.data.config import Folder, path_of
from zoo.errors import ReleaseError, ZooWarning, did_you_mean, few, one_line
from zoo.files import RUNS, read_text
from zoo.modules.centers import Centers
from zoo.release import Preprocess, Release, format
from zoo.release.schema import CLASS_NAMES, MAX_NAME, Input, invalid_class_name
from zoo.release.write import output, outputs_match, write_release

_PARTS = {"query": (kinds.QUERY, kinds.CENTERS), "momentum": (kinds.MOMENTUM, kinds.MOMENTUM_CENTERS)}


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
    label_order: Literal["natural", "plain"] | None = None,
    class_counts: Sequence[int] | str | Path | None = None,
    preprocess: Mapping[str, Any] | None = None,
    dataset: str | None = None,
    license: str | None = None,
    leave_out: Sequence[str] = (),
) -> Release:
    """Convert another project's checkpoint to a release.

    Nothing in the file is executed. The conversion fails unless every key is known; what is not released is
    listed in recipe.yaml under `converted.left_out`.

    Args:
        file: a checkpoint of torch.save, or .safetensors; or a name in `PUBLISHED`, which is downloaded.
        family: project whose layout the file has, a key of `FAMILIES`; "timm" for any timm model.
        out: the release folder to create; `runs/NAME` if None.
        arch: the encoder's architecture in timm; if None, the one that the file states.
        name: name of the weights, `arch.tag`; if None, built from arch, family and the file's name.
        encoder: "query" for the trained encoder, "momentum" for its EMA.
        model_args: arguments of the architecture, on top of those that the family or the file implies.
        labels: class names of the centers: a list, a .txt file with one per line, or data that have them.
        label_order: how a folder's classes were numbered: "natural" (1, 2, 10), as in timm, or "plain".
        class_counts: training images per class, or a file with one count per line; if None, unknown (-1).
        preprocess: fields of `Preprocess` that override those of the authors or the file.
        dataset: what the encoder was trained on, in words; "not recorded" if None.
        license: licence of the weights, a Hub identifier; if None, that of the authors' repository.
        leave_out: keys of the file, or shell patterns of keys, to leave out, such as unknown ones.

    Raises:
        ZooError: if the file cannot be read without running code, has unknown keys, or does not fit.
    """
    if not isfile(file) and (family is None or str(file) in PUBLISHED):
        published, file = str(file), fetch(str(file))
        name, arch = name or published, arch or published  # ARCH.TAG
        family, dataset = family or PUBLISHED[published].family, dataset or "ImageNet-1k"
    family, file = str(family), Path(file)
    orders = ("label-order", label_order or "plain", ("natural", "plain"))
    for option, value, known in (("family", family, FAMILIES), ("encoder", encoder, _PARTS), orders):
        if value not in known:
            near = did_you_mean(value, known)
            raise ReleaseError(f"--{option}: found {value}, expected one of {', '.join(known)}.{near}")
    project, checkpoint = FAMILIES[family], read_checkpoint(file)
    try:
        parts = sort_out(checkpoint.tensors, project, leave_out)
        part, its_centers = _PARTS[encoder]
        if part not in parts.found:
            raise ReleaseError(f"holds no {part}, only {', '.join(parts.found)}; choose another --encoder")
        given, plain = parts.found[part], family == "timm"
        # options of timm's train.py; other projects' mean other things
        stated = dict(checkpoint.settings) if plain else {}
        side = stated.pop("input_size", None) or stated.get("img_size")
        stated["img_size"] = side[-1] if isinstance(side, list | tuple) else side  # DeiT has one number
        arch = (arch or str(stated.get("model") or checkpoint.arch or "")).partition(".")[0]
        architectures = project.architectures or timm.list_models()
        if arch not in architectures:
            near = did_you_mean(arch, architectures)
            raise ReleaseError(f'arch: found "{arch}"; give its name in timm: --arch ARCH.{near}')
        args = {**_arguments(project, given, stated, arch), **(model_args or {})}
        backbones.check_arguments(args)  # `pretrained` would make timm download its own weights
        if not plain:  # PiCO's ResNets call them shortcut
            given = {re.sub(r"\.shortcut\.(?=\d)", ".downsample.", key): each for key, each in given.items()}
        tensors, head, linear = split_classifier(given, arch, args, may_have_one=plain)
        linear = linear if plain else parts.found.get(its_centers, {})
        model = build(arch, args, tensors)
        centers = _centers(linear, parts.found.get(kinds.PROTOTYPES, {}).get("prototypes"))
        classes = 0 if centers is None else len(centers.weight)
        view = _preprocess(model, project, classes, stated, preprocess or {})
        if centers is not None and head:  # is it one linear layer on the features?
            features = output(model, view.input_size)
            logits = output(build(arch, args, tensors | head, classes), view.input_size)
            fits = features.shape[1:] == centers.weight.shape[1:]
            if not (fits and outputs_match(logits, centers.logits(features))):
                centers, classes = None, 0
        class_names = _class_names(labels, label_order or (None if plain else "plain"), classes)
        if class_counts is not None:
            counts = [str(count) for count in _listed(class_counts, "class counts")]
            if len(counts) != classes or not all(re.fullmatch("[0-9]{1,15}", count) for count in counts):
                raise ReleaseError(f"class counts: found {few(counts)}, expected {classes} whole numbers")
            centers = centers and centers._replace(class_counts=torch.tensor([*map(int, counts)]))
    except (ReleaseError, AssertionError, RuntimeError, TypeError, ValueError, LookupError) as error:
        raise ReleaseError(f"{file}: {str(error) or type(error).__name__}") from None  # from what it states
    tag = re.sub(r"[^a-z0-9]+", "_", f"{family}_{file.name.partition('.')[0]}".lower()).strip("_")
    name = name or f"{arch}.{tag}"[:MAX_NAME].rstrip("_")
    target = RUNS / name if out is None else Path(out)
    if format.holds_release(target):
        raise ReleaseError(f'"{target}" holds a release already; choose another --out')
    code = f"https://github.com/{project.repository}"
    text = f"The {encoder} encoder of `{file.name}`, a checkpoint in the layout of {code}, converted to this "
    text += "format; nothing was trained here, and no figure of its authors was measured again."
    kept = [part, *([its_centers, kinds.PROTOTYPES] if centers is not None else [])]
    left_out: dict[str, list[str]] = {}
    of_head = {} if classes else dict.fromkeys(head, "classifier that is not one linear layer")
    for key, what in {**parts.kinds, **checkpoint.entries, **of_head}.items():
        if what not in kept:
            left_out.setdefault(what, []).append(key)
    recipe = {
        "name": name,
        "description": text,
        "converted": {
            "file": file.name,
            "sha256": format.sha256(file),
            "family": family,
            "repository": code,
            "encoder": encoder,
            "label_order": label_order,
            "left_out": {what: one_line(few(keys, 4)) for what, keys in left_out.items()},
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
        preprocess=view,
        class_names=class_names,
        centers=centers,
        objective=project.objective,
        dataset={"name": dataset or "not recorded"},
        recipe_text=dump_yaml(recipe),
        metrics={},
        description=text,
        license=license or project.license,
    )


def _arguments(
    project: Family, encoder: Mapping[str, Tensor], stated: Mapping[Any, Any], arch: str
) -> dict[str, Any]:
    """Return the architecture's arguments that a family implies, or that timm's train.py recorded."""
    args = {"global_pool": stated.get("gp"), "bn_eps": stated.get("bn_eps")}
    args |= dict(stated.get("model_kwargs") or {})
    for key, width, implied in project.arguments:
        if key in encoder and (width is None or encoder[key].shape[-1:] == (width,)):
            args |= implied
    cfg, size = timm.get_pretrained_cfg(arch), stated.get("img_size")
    if cfg is not None and cfg.fixed_input_size and size not in (None, cfg.input_size[-1]):
        args.setdefault("img_size", size)
    return {key: value for key, value in args.items() if value is not None}


def _centers(linear: Mapping[str, Tensor], prototypes: Tensor | None) -> Centers | None:
    if not linear:
        return None
    weight, bias = (linear.get(key, torch.empty(0)) for key in ("weight", "bias"))
    tensors = [weight, bias, *([] if prototypes is None else [prototypes])]
    fits = linear.keys() <= {"weight", "bias"} and weight.ndim == 2 and bias.shape == weight.shape[:1]
    if not fits or any(each.dtype not in FLOATS or not torch.isfinite(each).all() for each in tensors):
        found = {key: f"{value.dtype} {[*value.shape]}" for key, value in linear.items()}
        raise ReleaseError(f"centers: found {found}, expected finite weight [C, D] and bias [C]")
    counts = torch.full((len(weight),), -1)  # unknown
    return Centers(weight.float(), bias.float(), counts, None if prototypes is None else prototypes.float())


def _preprocess(
    model: nn.Module, project: Family, classes: int, stated: Mapping[Any, Any], given: Mapping[str, Any]
) -> Preprocess:
    """Return the authors' test-time preprocessing: timm's default for an architecture is for other weights.

    All known projects resize to 256 pixels and crop 224, with bilinear interpolation; images for CIFAR stay
    as they are. For any other timm model, the file's settings apply, or else the architecture's defaults.
    """
    cfg: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    size = backbones.size_built_for(model) or cfg["input_size"][-1]
    found: dict[str, Any] = timm.data.resolve_data_config(dict(stated), pretrained_cfg=dict(cfg))
    if project.architectures:
        small = size <= 64  # an architecture for CIFAR
        mean, std = project.by_classes.get(classes, project.cifar if small else kinds.IMAGENET)
        size = size if small or cfg.get("fixed_input_size") else 224
        found = {"crop_pct": 1.0 if small else 0.875, "interpolation": "bilinear", "mean": mean, "std": std}
    elif not given and stated.keys() == {"img_size"}:
        message = f"preprocess: the file has none, {backbones.name_of(model)}'s in timm is assumed; see --set"
        warnings.warn(message, ZooWarning, stacklevel=2)
    found["input_size"] = stated.get("img_size") or size
    found = {key: found[key] for key in Input.model_fields if key in found} | dict(given)
    return Preprocess(**parse(Input, found, "preprocess", ReleaseError).model_dump())


def _listed(source: Any, what: str) -> list[Any]:
    """Return the values of a list, or the lines of a file."""
    if (path := path_of(source)) is None:
        return [*source]
    if path.suffix.lower() in (".csv", ".parquet"):  # which may have a header and other columns
        raise ReleaseError(f'{what}: found "{path}", expected a .txt file with one per line')
    lines = [line.strip() for line in read_text(path, ReleaseError).splitlines()]
    return [line for line in lines if line]


def _class_names(labels: Any, order: str | None, classes: int) -> list[str]:
    """Return the centers' class names: indices, those listed, or a data set's in the given order."""
    path = path_of(labels)
    if path is not None and (not isfile(path) or path.suffix.lower() == ".parquet"):
        given = as_data(labels)
        dataset = open_dataset(given.config, "train", given.root)
        names, counts = [*dataset.class_names], dataset.class_counts
        empty = [name for name, images in zip(names, counts, strict=True) if not images]
        if empty and isinstance(given.config.source, Folder):  # which timm would not have numbered
            raise ReleaseError(f"labels: found no image in the folder {few(empty)}, expected some in each")
        natural = sorted(names, key=natural_key)
        if names == sorted(names) != natural and order is None:
            raise ReleaseError("labels: give --label-order natural (1, 2, 10) or plain (1, 10, 2)")
        names = natural if order == "natural" else names
    else:
        names = [str(index) for index in range(classes)] if labels is None else _listed(labels, "labels")
    if classes and len(names) != classes:
        raise ReleaseError(f"found {len(names)} labels, expected {classes}, as the file has centers")
    if (unfit := invalid_class_name(names)) is not None:
        raise ReleaseError(f"labels: found {names[unfit]!r} of class {unfit}, expected {CLASS_NAMES}")
    return names
