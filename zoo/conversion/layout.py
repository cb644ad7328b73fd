"""From a file's keys to the parts of a release: what each key is, and how timm names it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.conversion.families import FAMILIES, Part, Rules
from zoo.conversion.read import summary
from zoo.errors import ReleaseError


class Parts(NamedTuple):
    """A file's tensors, sorted.

    Attributes:
        found: tensors of each part, by the key that is left when the rule's prefix is removed.
        left_out: keys that are understood and not released -> what they are.
        unknown: keys without a rule.
        absent: parts that the layout needs and the file lacks.
    """

    found: dict[Part, dict[str, Tensor]]
    left_out: dict[str, str]
    unknown: list[str]
    absent: list[Part | str]

    @property
    def has_encoder(self) -> bool:
        """Whether there is an encoder: of the two, one may have been removed."""
        return bool({Part.QUERY, Part.MOMENTUM} & self.found.keys())

    @property
    def fits(self) -> bool:
        """Whether the layout explains the file."""
        return self.has_encoder and not self.unknown and not self.absent


def sort_out(tensors: Mapping[str, Tensor], family: str, leave_out: Sequence[str] = ()) -> Parts:
    """Tell what each tensor is by the rules of a family.

    Args:
        tensors: of the file, see `Checkpoint.tensors`.
        family: a key of `FAMILIES`.
        leave_out: further keys, or shell patterns such as `decoder.*`, which the user wants left out.

    Raises:
        ReleaseError: listing the keys that are not understood or the parts that are missing, and the family
            whose layout fits.
    """
    extra = {key: "left out on request" for pattern in leave_out for key in _named(tensors, pattern)}
    candidates = [_apply(tensors, *layout, extra) for layout in FAMILIES[family].layouts]
    best = min(candidates, key=lambda parts: (not parts.fits, len(parts.unknown), len(parts.absent)))
    if best.fits and family != "timm":
        return best
    others = [
        name
        for name, other in FAMILIES.items()
        if name not in (family, "timm")
        and any(_apply(tensors, *layout, extra).fits for layout in other.layouts)
    ]
    if best.fits and not others:  # a file of any keys, but no project's checkpoint around its encoder
        return best
    hint = f". Its layout is that of --family {' or '.join(others)}" if others else ""
    raise ReleaseError(_misfit(tensors, family, best) + (hint or _hint(tensors, family, best)))


def _named(tensors: Mapping[str, Tensor], pattern: str) -> list[str]:
    keys = [key for key in tensors if fnmatchcase(key, pattern)]
    if not keys:
        raise ReleaseError(f'leave_out: no key of the file matches "{pattern}"')
    return keys


def _apply(
    tensors: Mapping[str, Tensor], rules: Rules, needs: tuple[Part | str, ...], extra: Mapping[str, str]
) -> Parts:
    parts = Parts({}, dict(extra), [], [])
    for key, tensor in tensors.items():
        if key in extra:
            continue
        pattern, what = next((rule for rule in rules if _matches(key, rule[0])), ("", None))
        if what is None:
            parts.unknown.append(key)
        elif isinstance(what, Part):
            container = "" if pattern.endswith("**") else pattern.removesuffix("*")
            found, name = parts.found.setdefault(what, {}), key.removeprefix(container) or key
            if name in found:  # a second container of the same part: which of the two is meant?
                parts.unknown.append(key)
            found.setdefault(name, tensor)
        else:
            parts.left_out[key] = what
    present = {*parts.found, *parts.left_out.values()}
    parts.absent.extend(need for need in needs if need not in present)
    return parts


def _matches(key: str, pattern: str) -> bool:
    return key.startswith(pattern.rstrip("*")) if pattern.endswith("*") else key == pattern


def _misfit(tensors: Mapping[str, Tensor], family: str, parts: Parts) -> str:
    if parts.unknown:
        return (
            f"{len(parts.unknown)} of {len(tensors)} keys are not understood as {family}: "
            f"{summary(parts.unknown)}"
        )
    absent = parts.absent or [Part.QUERY]
    names = ", ".join(need.value if isinstance(need, Part) else need for need in absent)
    return f"not the layout of {family}: no {names} among its {len(tensors)} keys: {summary(tensors)}"


def _hint(tensors: Mapping[str, Tensor], family: str, parts: Parts) -> str:
    if all(key.startswith("classifier.") for key in tensors):  # FT's and PyContrast's main_linear.py
        return ". It is a linear classifier alone; the encoder is in the checkpoint of the pretraining"
    if not parts.has_encoder:
        implied = FAMILIES[family].arguments(tensors)  # which as timm's nobody would know
        args = "".join(f" --arg {key}={value}" for key, value in implied.items())
        return (
            f". Nothing in it says that it is {family}'s; an encoder by itself, with timm's names, is "
            f"--family timm --arch ARCH{args}"
        )
    return '. If they are of no use, leave them out by name: --leave-out "PREFIX.*"' if parts.unknown else ""


def to_timm(encoder: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename an encoder's tensors as timm names them.

    torchvision's ResNets and timm's vision transformers have these names already. Others:

    - `shortcut.0` of SupContrast's, PiCO's and lightly's ResNets is `downsample.0`.
    - `nn.Sequential(*resnet.children())` numbers them, with or without activation and pooling: stages are
      those with blocks, the convolution and the BatchNorm before them are the stem.
    - `net.` of MoCo's CIFAR notebook goes.

    Split BatchNorm (several groups in one batch, statistics `[groups * C]`) becomes what it computes at test
    time: the mean over groups.
    """
    tensors = dict(encoder)
    if all(key.startswith("net.") for key in tensors):
        tensors = {key.removeprefix("net."): value for key, value in tensors.items()}
    if all(key.split(".")[0].isdigit() for key in tensors):
        names = _names_of_children(tensors)
        tensors = {_rename_child(key, names): value for key, value in tensors.items()}
    tensors = {re.sub(r"\.shortcut\.(?=\d)", ".downsample.", key): value for key, value in tensors.items()}
    return {key: _join_groups(key, value, tensors) for key, value in tensors.items()}


def _names_of_children(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    stages = {key.split(".")[0] for key in tensors if re.match(r"\d+\.\d+\.conv1\.weight$", key)}
    names = {index: f"layer{number}" for number, index in enumerate(sorted(stages, key=int), 1)}
    for key, tensor in tensors.items():
        index, _, rest = key.partition(".")
        if rest == "weight" and tensor.ndim == 4:
            names[index] = "conv1"
        elif rest == "running_mean":
            names[index] = "bn1"
    return names


def _rename_child(key: str, names: Mapping[str, str]) -> str:
    index, _, rest = key.partition(".")
    return f"{names.get(index, index)}.{rest}"


def _join_groups(key: str, value: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    module, _, name = key.rpartition(".")
    weight = tensors.get(f"{module}.weight")
    if name not in ("running_mean", "running_var") or weight is None or value.dtype != torch.float32:
        return value
    if value.ndim != 1 or weight.ndim != 1 or not len(weight) or len(value) % len(weight):
        return value
    groups = len(value) // len(weight)
    return value.reshape(groups, len(weight)).mean(dim=0) if groups > 1 else value
