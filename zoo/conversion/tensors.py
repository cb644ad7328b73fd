"""From a file's tensors to a timm model: what each is, how timm names it, which architecture it is of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import filter as matching
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo import backbones
from zoo.conversion.families import FAMILIES, MOMENTUM, QUERY, RELEASED, Family, Layout
from zoo.conversion.read import summary
from zoo.errors import ReleaseError, ZooError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LUMA = torch.tensor([0.299, 0.587, 0.114])  # of red, green and blue in grey: ITU-R 601, as PIL's "L"


class Parts(NamedTuple):
    """A file's tensors, sorted by a layout."""

    found: dict[str, dict[str, Tensor]]  # by what they are, by key without its container
    kinds: dict[str, str]  # what each key of the file is
    unknown: list[str]  # keys that are not understood
    absent: list[str]  # what the family needs and the file lacks


def sort_out(tensors: Mapping[str, Tensor], family: str, leave_out: Sequence[str]) -> Parts:
    """Tell by the layouts of a family what each tensor is; `leave_out` are further keys, or shell patterns.

    Raises:
        ReleaseError: listing what is not understood, or missing, and the family whose layout fits.
    """
    extra: dict[str, str] = {}
    for pattern in leave_out:
        if not (keys := matching(tensors, pattern)):
            raise ReleaseError(f'leave_out: no key of the file matches "{pattern}"')
        extra |= dict.fromkeys(keys, "left out on request")

    def sort(name: str) -> Parts:
        tried = [_apply(layout, tensors, FAMILIES[name], extra) for layout in FAMILIES[name].layouts]
        return min(tried, key=lambda parts: len(parts.unknown) + len(parts.absent))

    parts = sort(family)
    if not parts.unknown and not parts.absent and family != "timm":
        return parts
    others = [name for name in FAMILIES if name not in (family, "timm") and sort(name)[2:] == ([], [])]
    if not parts.unknown and not parts.absent and not others:  # no project's checkpoint around its encoder
        return parts
    hint = 'what is of no use is left out by name: --leave-out "PREFIX.*"; an encoder alone is --family timm'
    if others:
        hint = f"its layout is that of --family {' or '.join(others)}"
    problem = f"{len(parts.unknown or tensors)} of {len(tensors)} keys are not understood"
    if parts.absent and not parts.unknown:
        problem = f"no {', '.join(parts.absent)} among its keys"
    raise ReleaseError(f"not the layout of {family}: {problem}: {summary(parts.unknown or tensors)}; {hint}")


def _apply(layout: Layout, tensors: Mapping[str, Tensor], family: Family, extra: Mapping[str, str]) -> Parts:
    rules = [(pattern, what) for what, patterns in layout.items() for pattern in patterns.split()]
    parts = Parts({}, dict(extra), [], [])
    for key in (key for key in tensors if key not in extra):
        matches = (rule for rule in rules if fnmatchcase(key, rule[0].replace("**", "*")))
        pattern, what = next(matches, ("", ""))
        container = "" if pattern.endswith("**") else pattern.removesuffix("*")
        found, name = parts.found.setdefault(what, {}), key.removeprefix(container) or key
        if not what or (what in RELEASED and name in found):  # of two containers, which is meant?
            parts.unknown.append(key)
        found[name], parts.kinds[key] = tensors[key], what
    parts.absent.extend(need for need in family.needs if need not in parts.found)
    parts.absent.extend([QUERY] if not {QUERY, MOMENTUM} & parts.found.keys() else [])
    return parts


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
    prefix = "net." if all(key.startswith("net.") for key in encoder) else ""
    tensors = {
        re.sub(r"\.shortcut\.(?=\d)", ".downsample.", key.removeprefix(prefix)): value
        for key, value in encoder.items()
    }
    if all(key.split(".")[0].isdigit() for key in tensors):
        stages = {key.split(".")[0] for key in tensors if re.match(r"\d+\.\d+\.conv1\.weight$", key)}
        names = {index: f"layer{number}" for number, index in enumerate(sorted(stages, key=int), 1)}
        for key, tensor in tensors.items():
            index, _, rest = key.partition(".")
            if rest == "running_mean" or (rest == "weight" and tensor.ndim == 4):
                names[index] = "bn1" if rest == "running_mean" else "conv1"
        renamed = {}
        for key, tensor in tensors.items():
            index, _, rest = key.partition(".")
            renamed[f"{names.get(index, index)}.{rest}"] = tensor
        tensors = renamed
    for key, value in tensors.items():
        weight = tensors.get(f"{key.rpartition('.')[0]}.weight", value)
        split = key.endswith(("running_mean", "running_var")) and value.dtype == torch.float32
        if split and weight.ndim == 1 and 0 < len(weight) < len(value) and len(value) % len(weight) == 0:
            tensors[key] = value.view(-1, len(weight)).mean(0)
    return tensors


def _expected(arch: str, args: Mapping[str, Any], num_classes: int = 0) -> dict[str, Tensor]:
    """Return an architecture's tensors without values."""
    try:
        with torch.device("meta"):
            return dict(backbones.create(arch, num_classes=num_classes, **args).state_dict())
    except ZooError:  # wrong, or one that computes with values while it is built: only the latter succeeds
        with torch.random.fork_rng(devices=[]):
            return dict(backbones.create(arch, num_classes=num_classes, **args).state_dict())


def _fit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors with what files may lack, and how they differ from the wanted; '' if in nothing.

    Added are BatchNorm's counters, as by torch's own strict loading; and for an encoder of one channel the
    first convolution on three: of an RGB image it then computes what it did of the same image in grey.
    """
    complete = {key: torch.tensor(0) for key in wanted if key.endswith(".num_batches_tracked")}
    complete |= found
    wrong = []
    for key, value in wanted.items():
        given = found.get(key, value)
        floating = given.is_floating_point()
        if floating != value.is_floating_point() or (floating and given.dtype not in FLOATS):
            wrong.append(f"{key} is {str(given.dtype)[6:]} instead of {str(value.dtype)[6:]}")
        elif given.ndim == 4 and value.shape[1] == 3 and given.shape == (len(value), 1, *value.shape[2:]):
            complete[key] = given.float() * _LUMA.view(1, 3, 1, 1)
        elif given.shape != value.shape:
            wrong.append(f"{key} is {list(given.shape)} instead of {list(value.shape)}")
    problems = {
        "missing": summary(key for key in wanted if key not in complete),
        "unexpected": summary(key for key in found if key not in wanted),
        "wrong": ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
    }
    return complete, "; ".join(f"{kind}: {keys}" for kind, keys in problems.items() if keys)


def fit_encoder(
    encoder: Mapping[str, Tensor],
    family: Family,
    arch: str | None,
    stated: str | None,
    args: Mapping[str, Any],
) -> tuple[str, dict[str, Tensor]]:
    """Return the architecture of an encoder and all of its tensors.

    It is the user's (`arch`), the file's (`stated`), or the only one that fits. Where one of the family's
    fits, it has to be one of those: timm's `resnetblur18` has the shapes of `resnet18`, and is another.

    Raises:
        ReleaseError: listing what differs, and the family's architectures that fit.
    """

    def fit(name: str) -> tuple[dict[str, Tensor], str]:
        try:
            return _fit(encoder, _expected(name, args))
        except ZooError as error:  # no such architecture, or one that does not take these arguments
            return {}, str(error)

    transformer = "patch_embed.proj.weight" in encoder
    known = [name for name in family.architectures if name.startswith("vit_") == transformer]
    chosen = stated if arch is None else arch
    if chosen in known and not (fitted := fit(chosen))[1]:
        return chosen, fitted[0]
    fitting = [name for name in known if not fit(name)[1]]
    if arch is None and len(fitting) == 1:
        return fitting[0], fit(fitting[0])[0]
    if arch is None:
        found = f"several fit: {', '.join(fitting)}" if fitting else f"none fits of {', '.join(known)}"
        raise ReleaseError(
            f"arch: of the family's architectures, built with {dict(args)}, {found} (the encoder has "
            f"{summary(encoder, limit=4)}); give one: --arch ARCH"
        )
    complete, problem = fit(arch)
    if not problem and not fitting:
        return arch, complete
    hint = f". What fits: --arch {' or '.join(fitting)}" if fitting else ""
    problem = problem or "it has the same tensors and computes something else"
    raise ReleaseError(f"arch: the encoder is no {arch}: {problem}{hint}")


def split_classifier(
    tensors: Mapping[str, Tensor], arch: str, args: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Tell a timm model's encoder from its classifier, whatever names that has.

    What the model has with classes and not without them is the classifier's; of that, the shapes that change
    with the number of classes are its last layer's.

    Returns:
        The encoder's tensors; the classifier's; weight `[C, D]` and bias `[C]` of its last layer where that
        may be linear, else nothing.

    Raises:
        ZooError: listing what differs from the architecture; for an unknown one, or an unknown argument.
    """
    bare = wanted = _expected(arch, args)
    found, last = dict(tensors), list[str]()
    if any(key not in bare for key in tensors):
        two, three = (_expected(arch, args, num_classes) for num_classes in (2, 3))
        last = [key for key, value in two.items() if value.shape != three[key].shape]
        if classes := next((len(found[key]) for key in last if key in found and found[key].ndim), 0):
            wanted = _expected(arch, args, classes)
            # a layer without bias adds nothing
            found = {key: torch.zeros(classes) for key in last if key.endswith(".bias")} | found
    complete, problem = _fit(found, wanted)
    if problem:
        hint = '; what is of no use can be left out: --leave-out "PREFIX.*"' * ("unexpected" in problem)
        raise ReleaseError(f"arch: the model is no {arch}: {problem}{hint}")
    head = {key: value for key, value in complete.items() if key not in bare}
    encoder = {key: complete[key] for key in bare}
    weights = [key for key in last if key.endswith(".weight")]
    if len(weights) != 1:
        return encoder, head, {}
    weight = head[weights[0]].flatten(1)  # of a 1x1 convolution, too
    bias = head.get(f"{weights[0].removesuffix('weight')}bias", torch.zeros(len(weight)))
    return encoder, head, {"weight": weight, "bias": bias}


def build(
    arch: str, args: Mapping[str, Any], tensors: Mapping[str, Tensor], num_classes: int = 0
) -> nn.Module:
    """Return a model with these weights, in evaluation mode; a `ReleaseError` if not finite."""
    with torch.random.fork_rng(devices=[]):  # a conversion draws nothing
        model = backbones.create(arch, num_classes=num_classes, **args)
    model.load_state_dict(tensors)
    broken = [key for key, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if broken:
        raise ReleaseError(f"the weights are not finite: {summary(broken)}")
    return model.eval()
