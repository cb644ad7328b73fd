"""From a file's tensors to a timm model: sorts them into parts, splits off the classifier, builds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo import backbones
from zoo.convert.families import MOMENTUM, QUERY, RELEASED, Family, Layout
from zoo.errors import ReleaseError, ZooError, few

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Parts(NamedTuple):
    """A file's tensors, sorted by a layout."""

    found: dict[str, dict[str, Tensor]]  # part -> key without its container -> tensor
    kinds: dict[str, str]  # key of the file -> part
    unknown: list[str]  # keys that match no pattern


def sort_out(tensors: Mapping[str, Tensor], family: Family, leave_out: Sequence[str]) -> Parts:
    """Sort tensors into parts by a family's layouts; `leave_out` are keys, or shell patterns, to leave out.

    Raises:
        ReleaseError: listing unknown keys or missing parts.
    """
    extra: dict[str, str] = {}
    for pattern in leave_out:
        if not (keys := matching(tensors, pattern)):
            raise ReleaseError(f'leave_out: no key of the file matches "{pattern}"')
        extra |= dict.fromkeys(keys, "left out on request")
    tried = [_apply(layout, tensors, extra) for layout in family.layouts]
    parts = min(tried, key=lambda parts: len(parts.unknown))
    if parts.unknown:
        hint = "of no use? --leave-out PATTERN; another project's? --family"
        raise ReleaseError(f"keys not understood: {few(parts.unknown, 10)}; {hint}")
    needs = [*family.needs, *([QUERY] if MOMENTUM not in parts.found else [])]
    if absent := [need for need in needs if need not in parts.found]:
        raise ReleaseError(f"found no {', '.join(absent)} among its keys: {few(tensors, 10)}")
    return parts


def _apply(layout: Layout, tensors: Mapping[str, Tensor], extra: Mapping[str, str]) -> Parts:
    rules = [(pattern, what) for what, patterns in layout.items() for pattern in patterns.split()]
    parts = Parts({}, dict(extra), [])
    for key in (key for key in tensors if key not in extra):
        matches = (rule for rule in rules if fnmatchcase(key, rule[0].replace("**", "*")))
        pattern, what = next(matches, ("", ""))
        container = "" if pattern.endswith("**") else pattern.removesuffix("*")
        found, name = parts.found.setdefault(what, {}), key.removeprefix(container) or key
        if not what or (what in RELEASED and name in found):  # ambiguous: two containers have it
            parts.unknown.append(key)
        found[name], parts.kinds[key] = tensors[key], what
    return parts


def _expected(arch: str, args: Mapping[str, Any], num_classes: int = 0) -> dict[str, Tensor]:
    """Return an architecture's state dict, on the meta device where it can be built there."""
    with suppress(ZooError), torch.device("meta"):
        return dict(backbones.create(arch, num_classes=num_classes, **args).state_dict())
    with torch.random.fork_rng(devices=[]):  # wrong arguments, or a constructor that needs values
        return dict(backbones.create(arch, num_classes=num_classes, **args).state_dict())


def _fit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors with BatchNorm's counters, and how they differ from those wanted; '' if they fit."""
    complete = {key: torch.tensor(0) for key in wanted if key.endswith(".num_batches_tracked")} | dict(found)
    wrong = []
    for key, value in wanted.items():
        given = found.get(key, value)
        floating = given.is_floating_point()
        if floating != value.is_floating_point() or (floating and given.dtype not in FLOATS):
            wrong.append(f"{key} is {str(given.dtype)[6:]} instead of {str(value.dtype)[6:]}")
        elif given.shape != value.shape:
            wrong.append(f"{key} is {[*given.shape]} instead of {[*value.shape]}")
    problems = {
        "missing": few([key for key in wanted if key not in complete], 10),
        "unexpected": few([key for key in found if key not in wanted], 10),
        "wrong": ", ".join(wrong[:5]),
    }
    return complete, "; ".join(f"{kind}: {keys}" for kind, keys in problems.items() if keys)


def split_classifier(
    tensors: Mapping[str, Tensor], arch: str, args: Mapping[str, Any], *, may_have_one: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return a timm model's encoder, its classifier, and weight `[C, D]` and bias `[C]` of its last layer.

    Tensors that the model has only with classes are the classifier's; those of them whose shape depends on
    the number of classes are its last layer's. Unless there is exactly one such layer, the third is empty. A
    `ReleaseError` lists what is missing, unexpected or of the wrong shape.
    """
    bare = wanted = _expected(arch, args)
    found, last = dict(tensors), list[str]()
    if may_have_one and any(key not in bare for key in tensors):
        two, three = (_expected(arch, args, num_classes) for num_classes in (2, 3))
        last = [key for key, value in two.items() if value.shape != three[key].shape]
        if classes := next((len(found[key]) for key in last if key in found and found[key].ndim), 0):
            wanted = _expected(arch, args, classes)
            # a layer without a bias gets zeros
            found = {key: torch.zeros(classes) for key in last if key.endswith(".bias")} | found
    complete, problem = _fit(found, wanted)
    if problem:
        raise ReleaseError(f"arch: the model is no {arch}: {problem} (of no use? --leave-out PATTERN)")
    head = {key: value for key, value in complete.items() if key not in bare}
    encoder = {key: complete[key] for key in bare}
    weights = [key for key in last if key.endswith(".weight")]
    if len(weights) != 1:
        return encoder, head, {}
    weight = head[weights[0]].flatten(1)  # a 1x1 convolution's, too
    bias = head.get(f"{weights[0].removesuffix('weight')}bias", torch.zeros(len(weight)))
    return encoder, head, {"weight": weight, "bias": bias}


def build(
    arch: str, args: Mapping[str, Any], tensors: Mapping[str, Tensor], num_classes: int = 0
) -> nn.Module:
    """Build a model with these weights, in eval mode; raise a `ReleaseError` if they are not finite."""
    with torch.random.fork_rng(devices=[]):  # does not advance the global generator
        model = backbones.create(arch, num_classes=num_classes, **args)
    model.load_state_dict(tensors)
    broken = [key for key, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if broken:
        raise ReleaseError(f"the weights are not finite: {few(broken, 10)}")
    return model.eval()
