"""Which architecture an encoder's tensors are of: models on the meta device tell all keys and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo import backbones
from zoo.conversion.families import Family
from zoo.conversion.read import summary
from zoo.errors import ReleaseError, ZooError
from zoo.modules.centers import Centers

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LUMA = torch.tensor([0.299, 0.587, 0.114])  # of red, green and blue in grey: ITU-R 601, as PIL's "L"
_TRANSFORMER = "patch_embed.proj.weight"


class Classifier(NamedTuple):
    """A timm model's tensors told apart by the built model.

    Attributes:
        encoder: those of the model without classes.
        head: the others.
        centers: weight `[C, D_f]` and bias `[C]`, where that is one linear layer; else empty.
    """

    encoder: dict[str, Tensor]
    head: dict[str, Tensor]
    centers: dict[str, Tensor]


def expected(arch: str, args: Mapping[str, Any], num_classes: int = 0) -> dict[str, Tensor]:
    """Return an architecture's tensors without values.

    Raises:
        ZooError: for an unknown architecture or argument.
    """
    try:
        with torch.device("meta"):
            model = backbones.create(arch, num_classes=num_classes, **args)
    except ZooError:  # wrong, or one that computes with values while it is built: only the latter succeeds
        with torch.random.fork_rng(devices=[]):
            model = backbones.create(arch, num_classes=num_classes, **args)
    return dict(model.state_dict())


def complete(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `found` with what `wanted` has and files may lack, without another result.

    BatchNorm's counters, as torch's own strict loading adds them; and for an encoder of one channel the first
    convolution on three: of an RGB image it then computes what it did of the same image in grey.
    """
    whole = dict(found)
    for key, value in wanted.items():
        if key not in found and key.endswith(".num_batches_tracked"):
            whole[key] = torch.tensor(0)
        elif _is_grey(found.get(key), value) and found[key].dtype in FLOATS:
            whole[key] = found[key].float() * _LUMA.view(1, 3, 1, 1)
    return whole


def _is_grey(found: Tensor | None, wanted: Tensor) -> bool:
    """Whether a convolution takes one channel where three are wanted."""
    one = (*wanted.shape[:1], 1, *wanted.shape[2:])
    return found is not None and wanted.ndim == 4 and wanted.shape[1] == 3 and found.shape == one


def mismatch(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Say which tensors are missing, too much, of another shape or of other numbers; '' for none."""
    both = [key for key in wanted if key in found]
    shapes = [
        f"{key} is {list(found[key].shape)} instead of {list(wanted[key].shape)}"
        for key in both
        if found[key].shape != wanted[key].shape
    ]
    numbers = [
        f"{key} is {str(found[key].dtype).removeprefix('torch.')}"
        for key in both
        if wanted[key].is_floating_point() and found[key].dtype not in FLOATS
    ]
    problems = {
        "missing": summary(key for key in wanted if key not in found),
        "unexpected": summary(key for key in found if key not in wanted),
        "other shape": _first(shapes),
        "other numbers than float16, bfloat16, float32 or float64": _first(numbers),
    }
    return "; ".join(f"{kind}: {keys}" for kind, keys in problems.items() if keys)


def _first(problems: list[str], limit: int = 5) -> str:
    rest = [f"{len(problems) - limit} more"] if len(problems) > limit else []
    return ", ".join([*problems[:limit], *rest])


def find_architecture(
    encoder: Mapping[str, Tensor],
    arch: str | None,
    stated: str | None,
    args: Mapping[str, Any],
    *,
    family: Family,
) -> str:
    """Return the architecture of `encoder`: the user's, else the file's or the only one, where that fits.

    Shapes do not tell everything: timm's `resnetblur18` has those of `resnet18` and computes something else.
    So it also has to be one that the family's authors can have meant.

    Args:
        encoder: named as timm names them.
        arch: what the user says.
        stated: what the file says; its authors' word, which need not be timm's.
        args: of the architecture.
        family: whose file it is.

    Raises:
        ReleaseError: listing what differs and naming architectures that fit; when several of the family's
            fit and none is chosen; for one that fits and is not what the family means.
        ZooError: for an unknown architecture or argument.
    """
    named = stated if arch is None else arch
    if named in family.architectures and _fits(encoder, named, args):
        return named
    transformer = _TRANSFORMER in encoder
    tried = [name for name in family.architectures if name.startswith(("vit_", "swin_")) == transformer]
    fitting = [name for name in tried if _fits(encoder, name, args)]
    if arch is None and len(fitting) == 1:
        return fitting[0]
    if arch is None and fitting:
        raise ReleaseError(
            f"several architectures fit its encoder: {', '.join(fitting)}; choose one: --arch {fitting[0]}"
        )
    if arch is None and stated not in family.architectures:
        built = f" with {', '.join(f'{key}={value}' for key, value in args.items())}" if args else ""
        raise ReleaseError(
            f"none of the family's architectures{built} fits its encoder ({summary(encoder, limit=4)}): tried"
            f" {', '.join(tried)}; give one{' or another of timm' * family.any_architecture} to see what"
            " differs: --arch ARCH"
        )
    name = str(named)
    hint = f" What fits: --arch {' or '.join(fitting)}" if fitting else ""
    try:
        wanted = expected(name, args)
    except ZooError as error:
        raise ReleaseError(f"{error}{hint}") from None
    if problem := mismatch(complete(encoder, wanted), wanted):
        raise ReleaseError(f"the encoder is no {name}: {problem}.{hint}")
    if fitting or not family.any_architecture:
        raise ReleaseError(
            f"{name} has these tensors, but is not what the files of this family hold: it may compute "
            "something else." + (hint or f" Expected one of {', '.join(tried)}")
        )
    return name


def _fits(encoder: Mapping[str, Tensor], arch: str, args: Mapping[str, Any]) -> bool:
    try:
        wanted = expected(arch, args)
    except ZooError:  # an architecture that does not take these arguments
        return False
    return not mismatch(complete(encoder, wanted), wanted)


def split_classifier(tensors: Mapping[str, Tensor], arch: str, args: Mapping[str, Any]) -> Classifier:
    """Tell a timm model's encoder from its classifier, whatever names that has.

    What the model has with classes and not without them is the classifier's; of that, the shapes that change
    with the number of classes are its last layer's.

    Raises:
        ReleaseError: listing what differs from the architecture.
        ZooError: for an unknown architecture or argument.
    """
    wanted = expected(arch, args)
    head = {key: value for key, value in tensors.items() if key not in wanted}
    last = list[str]()
    if head:
        two, three = (expected(arch, args, num_classes) for num_classes in (2, 3))
        last = [key for key, value in two.items() if value.shape != three[key].shape]
        classes = next((len(head[key]) for key in last if key in head and head[key].numel() > 1), 0)
        wanted = expected(arch, args, classes) if classes else wanted
        if any(key in head for key in last):  # a layer without bias adds nothing
            head |= {key: torch.zeros(classes) for key in last if key.endswith(".bias") and key not in head}
    whole = complete({**tensors, **head}, wanted)
    if problem := mismatch(whole, wanted):
        only_more = problem.startswith("unexpected") and ";" not in problem
        hint = '. What is of no use can be left out: --leave-out "PREFIX.*"' if only_more else ""
        raise ReleaseError(f"the model is no {arch}: {problem}{hint}")
    head = {key: value for key, value in whole.items() if key in head}
    encoder = {key: value for key, value in whole.items() if key not in head}
    weights = [key for key in last if key.endswith(".weight")]
    if len(weights) != 1 or head.keys() != {*last} or head[weights[0]].flatten(1).ndim != 2:
        return Classifier(encoder, head, {})
    weight = head[weights[0]].flatten(1)  # of a 1x1 convolution, too
    bias = head.get(f"{weights[0].removesuffix('weight')}bias")
    return Classifier(
        encoder, head, {"weight": weight, "bias": torch.zeros(len(weight)) if bias is None else bias}
    )


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


def is_linear(encoder: nn.Module, model: nn.Module, centers: Centers, size: int) -> bool:
    """Whether a model's logits are its encoder's features times the centers, seen on images of noise."""
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, found = encoder(images), model(images)
        if features.shape[1:] != centers.weight.shape[1:]:
            return False
        logits = centers.logits(features)
    return torch.allclose(found, logits, rtol=1e-3, atol=1e-4 * float(logits.abs().max()))
