"""From a file's tensors to a timm model: what each is, how timm names it, which architecture it is of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import filter as matching
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
    """A file's tensors, sorted by a layout.

    Attributes:
        found: by what they are, the tensors by the key that is left without the pattern's container.
        kinds: what each key of the file is.
        unknown: keys that no pattern matches.
        absent: what the family needs and the file lacks.
    """

    found: dict[str, dict[str, Tensor]]
    kinds: dict[str, str]
    unknown: list[str]
    absent: list[str]


def sort_out(tensors: Mapping[str, Tensor], family: str, leave_out: Sequence[str] = ()) -> Parts:
    """Tell what each tensor is by the layouts of a family.

    Args:
        tensors: of the file, see `Checkpoint.tensors`.
        family: a key of `FAMILIES`.
        leave_out: further keys, or shell patterns such as `decoder.*`, which the user wants left out.

    Raises:
        ReleaseError: listing the keys that are not understood or the parts that are missing, and the family
            whose layout fits.
    """
    extra: dict[str, str] = {}
    for pattern in leave_out:
        if not (keys := matching(tensors, pattern)):
            raise ReleaseError(f'leave_out: no key of the file matches "{pattern}"')
        extra |= dict.fromkeys(keys, "left out on request")

    def sort(name: str) -> Parts:
        tried = [_apply(layout, tensors, FAMILIES[name].needs, extra) for layout in FAMILIES[name].layouts]
        return min(tried, key=lambda parts: len(parts.unknown) + len(parts.absent))

    parts = sort(family)
    fits = not parts.unknown and not parts.absent
    if fits and family != "timm":
        return parts
    sorted_by = {name: sort(name) for name in FAMILIES if name not in (family, "timm")}
    others = [name for name, other in sorted_by.items() if not other.unknown and not other.absent]
    if fits and not others:  # a file of any keys, but no project's checkpoint around its encoder
        return parts
    if parts.unknown or fits:
        keys = parts.unknown or [*tensors]
        problem = f"{len(keys)} of {len(tensors)} keys are not understood as {family}: {summary(keys)}"
    else:
        problem = (
            f"not the layout of {family}: no {', '.join(parts.absent)} among its keys {summary(tensors)}"
        )
    if others:
        hint = f". Its layout is that of --family {' or '.join(others)}"
    elif QUERY in parts.found or MOMENTUM in parts.found:
        hint = '. If they are of no use, leave them out by name: --leave-out "PREFIX.*"' * bool(parts.unknown)
    else:  # what the family implies, as timm's nobody would know
        implied = "".join(
            f" --arg {key}={value}" for key, value in FAMILIES[family].arguments(tensors).items()
        )
        hint = (
            f". Nothing in it says that it is {family}'s; an encoder by itself, with timm's names, is "
            f"--family timm --arch ARCH{implied}"
        )
    raise ReleaseError(problem + hint)


def _apply(
    layout: Layout, tensors: Mapping[str, Tensor], needs: Sequence[str], extra: Mapping[str, str]
) -> Parts:
    rules = [(pattern, what) for what, patterns in layout.items() for pattern in patterns.split()]
    parts = Parts({}, dict(extra), [], [])
    for key in (key for key in tensors if key not in extra):
        pattern, what = next((rule for rule in rules if _matches(key, rule[0])), ("", ""))
        container = "" if pattern.endswith("**") else pattern.removesuffix("*")
        found, name = parts.found.setdefault(what, {}), key.removeprefix(container) or key
        if not what or (what in RELEASED and name in found):  # of two containers, which is meant?
            parts.unknown.append(key)
        found[name], parts.kinds[key] = tensors[key], what
    parts.absent.extend(need for need in needs if need not in parts.found)
    if not {QUERY, MOMENTUM} & parts.found.keys():
        parts.absent.append(QUERY)
    return parts


def _matches(key: str, pattern: str) -> bool:
    return key.startswith(pattern.rstrip("*")) if pattern.endswith("*") else key == pattern


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
    tensors = {key.removeprefix(prefix): value for key, value in encoder.items()}
    if all(key.split(".")[0].isdigit() for key in tensors):
        stages = {key.split(".")[0] for key in tensors if re.match(r"\d+\.\d+\.conv1\.weight$", key)}
        names = {index: f"layer{number}" for number, index in enumerate(sorted(stages, key=int), 1)}
        for key, tensor in tensors.items():
            index, _, rest = key.partition(".")
            if rest == "running_mean":
                names[index] = "bn1"
            elif rest == "weight" and tensor.ndim == 4:
                names[index] = "conv1"
        tensors = {
            f"{names.get(index, index)}.{rest}": value
            for (index, _, rest), value in ((key.partition("."), value) for key, value in tensors.items())
        }
    tensors = {re.sub(r"\.shortcut\.(?=\d)", ".downsample.", key): value for key, value in tensors.items()}
    for key, value in tensors.items():
        module, _, name = key.rpartition(".")
        weight = tensors.get(f"{module}.weight", value)
        if name not in ("running_mean", "running_var") or value.dtype != torch.float32 or weight.ndim != 1:
            continue
        if 0 < len(weight) < value.numel() and value.numel() % len(weight) == 0:
            tensors[key] = value.view(-1, len(weight)).mean(0)
    return tensors


def _expected(arch: str, args: Mapping[str, Any], num_classes: int = 0) -> dict[str, Tensor]:
    """Return an architecture's tensors without values."""
    try:
        with torch.device("meta"):
            model = backbones.create(arch, num_classes=num_classes, **args)
    except ZooError:  # wrong, or one that computes with values while it is built: only the latter succeeds
        with torch.random.fork_rng(devices=[]):
            model = backbones.create(arch, num_classes=num_classes, **args)
    return dict(model.state_dict())


def _fit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors with what files may lack, and how they differ from the wanted; '' if in nothing.

    Added are BatchNorm's counters, as by torch's own strict loading; and for an encoder of one channel the
    first convolution on three: of an RGB image it then computes what it did of the same image in grey.
    """
    whole = dict(found)
    wrong = []
    for key, value in wanted.items():
        if key not in found:
            if key.endswith(".num_batches_tracked"):
                whole[key] = torch.tensor(0)
            continue
        given, one = found[key], (*value.shape[:1], 1, *value.shape[2:])
        if given.is_floating_point() != value.is_floating_point() or (
            value.is_floating_point() and given.dtype not in FLOATS
        ):
            wrong.append(f"{key} is {str(given.dtype)[6:]} instead of {str(value.dtype)[6:]}")
        elif value.ndim == 4 and value.shape[1] == 3 and given.shape == one:
            whole[key] = given.float() * _LUMA.view(1, 3, 1, 1)
        elif given.shape != value.shape:
            wrong.append(f"{key} is {list(given.shape)} instead of {list(value.shape)}")
    problems = {
        "missing": summary(key for key in wanted if key not in whole),
        "unexpected": summary(key for key in found if key not in wanted),
        "wrong": ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
    }
    return whole, "; ".join(f"{kind}: {keys}" for kind, keys in problems.items() if keys)


def fit_encoder(
    encoder: Mapping[str, Tensor],
    family: Family,
    arch: str | None,
    stated: str | None,
    args: Mapping[str, Any],
) -> tuple[str, dict[str, Tensor]]:
    """Return the architecture of an encoder and all of its tensors: the user's, the file's or the only one.

    Shapes do not tell everything: timm's `resnetblur18` has those of `resnet18` and computes something else.
    So where one that the family's authors use fits, it has to be one of those.

    Args:
        encoder: named as timm names them.
        family: whose file it is.
        arch: what the user says.
        stated: what the file says; its authors' word, which need not be timm's.
        args: of the architecture.

    Raises:
        ReleaseError: listing what differs and naming architectures that fit; when several of the family's
            fit and none is chosen, or none does.
    """

    def tried(name: str) -> tuple[dict[str, Tensor], str]:
        try:
            return _fit(encoder, _expected(name, args))
        except ZooError as error:  # no such architecture, or one that does not take these arguments
            return {}, str(error)

    transformer = "patch_embed.proj.weight" in encoder
    known = [name for name in family.architectures if name.startswith("vit_") == transformer]
    named = stated if arch is None else arch
    if named in known and not (fitted := tried(named))[1]:
        return named, fitted[0]
    fitting = [name for name in known if not tried(name)[1]]
    if arch is None and len(fitting) == 1:
        return fitting[0], tried(fitting[0])[0]
    if arch is None:
        found = f"several fit: {', '.join(fitting)}" if fitting else f"none fits of {', '.join(known)}"
        raise ReleaseError(
            f"arch: of the family's architectures, built with {dict(args)}, {found} (the encoder has "
            f"{summary(encoder, limit=4)}); give one: --arch ARCH"
        )
    whole, problem = tried(arch)
    if not problem and not fitting:
        return arch, whole
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
        ReleaseError: listing what differs from the architecture.
        ZooError: for an unknown architecture or argument.
    """
    bare = wanted = _expected(arch, args)
    found, last = dict(tensors), list[str]()
    if any(key not in bare for key in tensors):
        two, three = (_expected(arch, args, num_classes) for num_classes in (2, 3))
        last = [key for key, value in two.items() if value.shape != three[key].shape]
        classes = next((len(found[key]) for key in last if key in found and found[key].ndim), 0)
        wanted = _expected(arch, args, classes) if classes else wanted
        if classes:  # a layer without bias adds nothing
            found = {key: torch.zeros(classes) for key in last if key.endswith(".bias")} | found
    whole, problem = _fit(found, wanted)
    if problem:
        hint = (
            '. What is of no use can be left out: --leave-out "PREFIX.*"' if "unexpected" in problem else ""
        )
        raise ReleaseError(f"arch: the model is no {arch}: {problem}{hint}")
    head = {key: value for key, value in whole.items() if key not in bare}
    encoder = {key: whole[key] for key in bare}
    weights = [key for key in last if key.endswith(".weight")]
    if len(weights) != 1:
        return encoder, head, {}
    weight = head[weights[0]].flatten(1)  # of a 1x1 convolution, too
    bias = head.get(f"{weights[0].removesuffix('weight')}bias", torch.zeros(len(weight)))
    return encoder, head, {"weight": weight, "bias": bias}


def build(
    arch: str, args: Mapping[str, Any], tensors: Mapping[str, Tensor], num_classes: int = 0
) -> nn.Module:
    """Return a model with these weights, in evaluation mode.

    Raises:
        ReleaseError: for weights that are not finite.
    """
    with torch.random.fork_rng(devices=[]):  # a conversion draws nothing
        model = backbones.create(arch, num_classes=num_classes, **args)
    model.load_state_dict(tensors)
    broken = [key for key, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if broken:
        raise ReleaseError(f"the weights are not finite: {summary(broken)}")
    return model.eval()
