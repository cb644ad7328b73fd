"""`convert_checkpoint`: from the authors' file to a release folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from zoo import backbones
from zoo.config import Config, dump_yaml
from zoo.errors import ReleaseError, did_you_mean
from zoo.files import RUNS
from zoo.modules.centers import Centers
from zoo.release import format, licenses
from zoo.release.build import check_arguments
from zoo.release.convert.architecture import check_fit, find_architecture
from zoo.release.convert.families import FAMILIES, Family
from zoo.release.convert.layout import Parts, sort_out, to_timm
from zoo.release.convert.listing import summary
from zoo.release.convert.options import (
    check_counts,
    check_labels,
    check_name,
    check_preprocessing,
    check_texts,
    default_name,
)
from zoo.release.convert.preprocessing import Preprocessing, fill_in
from zoo.release.convert.reading import Checkpoint, read_checkpoint
from zoo.release.convert.rules import Part
from zoo.release.release import Release
from zoo.release.relicense import STATED
from zoo.release.write import write_release

Encoder = Literal["query", "momentum"]
UNKNOWN_COUNT = -1  # of a class whose number of training images is not known
_CENTERS = {"query": Part.CENTERS, "momentum": Part.MOMENTUM_CENTERS}


class Source(Config):
    """Where a converted release comes from: `converted` in its recipe.yaml."""

    file: str
    """The checkpoint's name."""
    sha256: str
    family: str
    repository: str
    encoder: Encoder
    epoch: int | None
    tensors: dict[str, int]
    left_out: dict[str, str]


class ConvertedRecipe(Config):
    """recipe.yaml of a converted release: no training of ours, so it cannot be trained from it."""

    name: str
    description: str
    converted: Source
    backbone: dict[str, Any]
    objective: dict[str, Any]


def convert_checkpoint(
    file: str | Path,
    family: str,
    out: str | Path | None = None,
    *,
    arch: str | None = None,
    name: str | None = None,
    encoder: Encoder = "query",
    model_args: Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    class_counts: Sequence[int] | None = None,
    preprocessing: Preprocessing | None = None,
    dataset: str = "not recorded",
    license: str | None = None,
    description: str | None = None,
    leave_out: Sequence[str] = (),
) -> Release:
    """Make a release of an encoder that others trained; see `zoo.convert` for the arguments."""
    file = Path(file)
    known = _family(family)
    if encoder not in get_args(Encoder):
        raise ReleaseError(f'encoder: found "{encoder}", expected {" or ".join(get_args(Encoder))}')
    name = name or (None if arch is None else default_name(arch, family, file.name))
    if name is not None:
        check_name(name, arch)
    check_labels(() if labels is None else labels)
    class_counts = None if class_counts is None else _plain(class_counts)
    check_counts(class_counts or ())
    check_texts(dataset=dataset, description=description)
    if license is not None:
        licenses.check(license)
        licenses.warn_unlisted(license)
    preprocessing = preprocessing or Preprocessing()
    check_preprocessing(preprocessing)
    if arch is not None and "." in arch:
        raise ReleaseError(
            f'arch: found "{arch}", expected an architecture without the tag of its weights:'
            f' "{arch.partition(".")[0]}"'
        )
    check_arguments(model_args or {})  # `pretrained` would have timm fetch weights of its own
    target = _target(out, name) if out is not None or name is not None else None  # before the file is read

    checkpoint = read_checkpoint(file)
    try:
        parts = sort_out(checkpoint.tensors, family, leave_out)
    except ReleaseError as error:
        raise ReleaseError(f"{file}: {error}") from None
    chosen = parts.found.get(Part[encoder.upper()])
    if chosen is None:
        other = "momentum" if encoder == "query" else "query"
        hint = f"; choose --encoder {other}" if Part[other.upper()] in parts.found else ""
        raise ReleaseError(f"{file}: holds no {encoder} encoder, only {summary(_names(parts))}{hint}")
    _check_real(parts, str(file))
    tensors = chosen if known.any_weights else to_timm(chosen)
    implied, given = known.arguments(chosen), model_args or {}
    if arch is None:
        arch = find_architecture(tensors, checkpoint.arch, implied, given, family=known, where=str(file))
    name = name or default_name(arch, family, file.name)
    target = target or _target(None, name)
    args = check_fit(tensors, arch, implied, given, family=known, where=str(file))
    centers = _centers(parts, encoder, class_counts, str(file))
    class_names = _class_names(labels, centers, str(file))
    model = _build(tensors, arch, args, str(file))

    text = description or _describe(
        file.name, known, encoder, checkpoint, centers, own_license=license is None
    )
    objective: dict[str, Any] = {"name": known.objective}
    if family == "ft":
        objective["feature_transform"] = True  # the settings are not in the file
    recipe = ConvertedRecipe(
        name=name,
        description=text,
        converted=Source(
            file=file.name,
            sha256=format.sha256(file),
            family=family,
            repository=known.repository,
            encoder=encoder,
            epoch=checkpoint.epoch,
            tensors=_taken(parts, encoder),
            left_out=_left_out(parts, encoder, checkpoint),
        ),
        backbone={"arch": arch, "args": args},
        objective=objective,
    )
    return write_release(
        target,
        name=name,
        encoder=model,
        arch=arch,
        model_args=args,
        preprocess=fill_in(model, known, preprocessing, args, centers),
        class_names=class_names,
        centers=centers,
        objective=known.objective,
        dataset={"name": dataset},
        recipe_text=dump_yaml(recipe.model_dump(mode="json")),
        metrics={"training": {}, "evaluations": []},
        description=text,
        license=license or known.license,
    )


def _family(name: str) -> Family:
    if name not in FAMILIES:
        raise ReleaseError(
            f'family: found "{name}", expected one of {", ".join(FAMILIES)}.{did_you_mean(name, FAMILIES)}'
        )
    return FAMILIES[name]


def _target(out: str | Path | None, name: str | None) -> Path:
    target = Path(out) if out is not None else RUNS / str(name)
    if format.holds_release(target):
        raise ReleaseError(f'"{target}" holds a release already; choose another --out')
    return target


def _names(parts: Parts) -> list[str]:
    return [part.value for part in parts.found]


def _check_real(parts: Parts, where: str) -> None:
    """Copying complex numbers into a model's weights would lose their imaginary part."""
    found = [key for part in parts.found.values() for key, tensor in part.items() if tensor.is_complex()]
    if found:
        raise ReleaseError(f"{where}: the weights are complex numbers, expected real ones: {summary(found)}")


def _build(tensors: Mapping[str, Tensor], arch: str, args: Mapping[str, Any], where: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):  # a conversion draws nothing
        model = backbones.create(arch, **args)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:  # quantized tensors, or some without data
        reason = str(error).splitlines()[-1].strip()
        raise ReleaseError(f"{where}: the weights cannot be copied: {reason}") from None
    broken = [key for key, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if broken:
        raise ReleaseError(f"{where}: the weights are not finite: {summary(broken)}")
    return model


def _centers(parts: Parts, encoder: Encoder, counts: Sequence[int] | None, where: str) -> Centers | None:
    tensors = parts.found.get(_CENTERS[encoder])
    if tensors is None:
        if counts is not None:
            raise ReleaseError(f"{where}: class counts are given, but the file has no centers")
        return None
    if tensors.keys() != {"weight", "bias"} or tensors["weight"].ndim != 2:
        raise ReleaseError(f"{where}: centers: found {summary(tensors)}, expected weight [C, D] and bias [C]")
    prototypes = next(iter(parts.found.get(Part.PROTOTYPES, {}).values()), None)
    for tensor in (tensors["weight"], tensors["bias"], *([] if prototypes is None else [prototypes])):
        _check_plain(tensor, f"{where}: centers")
    weight, bias = tensors["weight"].float(), tensors["bias"].float()
    if bias.shape != weight.shape[:1]:
        raise ReleaseError(f"{where}: centers: found bias {list(bias.shape)}, expected [{len(weight)}]")
    known = torch.full((len(weight),), UNKNOWN_COUNT) if counts is None else torch.tensor(counts).long()
    if len(known) != len(weight):
        raise ReleaseError(f"{where}: found {len(known)} class counts, expected {len(weight)}")
    return Centers(weight, bias, known, None if prototypes is None else prototypes.float())


def _plain(counts: Any) -> list[Any]:
    """Return counts as a list; an array's as plain numbers."""
    try:
        return list(counts.tolist() if hasattr(counts, "tolist") else counts)
    except TypeError:
        raise ReleaseError(f"class counts: found {counts!r}, expected one number for each class") from None


def _check_plain(tensor: Tensor, where: str) -> None:
    """Refuse what cannot be computed with, and a view of few values that stands for any number of them."""
    plain = tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_meta)
    if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ReleaseError(f"{where}: found a tensor that does not hold its own values, expected a plain one")


def _class_names(labels: Sequence[str] | None, centers: Centers | None, where: str) -> list[str]:
    if labels is None:
        return [] if centers is None else [str(index) for index in range(len(centers.weight))]
    if centers is not None and len(labels) != len(centers.weight):
        raise ReleaseError(f"{where}: found {len(labels)} labels, expected {len(centers.weight)}")
    return list(labels)


def _describe(
    file: str,
    family: Family,
    encoder: Encoder,
    checkpoint: Checkpoint,
    centers: Centers | None,
    *,
    own_license: bool,
) -> str:
    trained = "" if checkpoint.epoch is None else f" The file says epoch {checkpoint.epoch}."
    text = (
        f"The {encoder} encoder of `{file}`, a checkpoint in the layout of {family.repository}, converted to "
        f"this format; nothing was trained here.{trained}"
    )
    if centers is not None:
        text += " Its class centers are the linear classifier that the file holds on the encoder's features."
        if (centers.class_counts < 0).any():
            text += " How many training images each class had is not known: `class_counts` is -1."
    if centers is not None and centers.prototypes is not None:
        text += " `prototypes` are the file's class prototypes, in the space of its projection."
    if own_license and family.license != "unknown":
        text += STATED
    return text + " None of its authors' figures was measured again, so none is stated."


def _taken(parts: Parts, encoder: Encoder) -> dict[str, int]:
    kept = (Part[encoder.upper()], _CENTERS[encoder], Part.PROTOTYPES)
    return {part.value: len(parts.found[part]) for part in kept if part in parts.found}


def _left_out(parts: Parts, encoder: Encoder, checkpoint: Checkpoint) -> dict[str, str]:
    """Say what is not in the release: what it is -> its keys."""
    taken = _taken(parts, encoder)
    others = {
        part.value: f"{len(tensors)} tensors"
        for part, tensors in parts.found.items()
        if part.value not in taken
    }
    groups: dict[str, list[str]] = {}
    for key, what in {**parts.left_out, **checkpoint.entries}.items():
        groups.setdefault(what, []).append(key)
    return {**others, **{what: summary(keys, limit=4) for what, keys in groups.items()}}
