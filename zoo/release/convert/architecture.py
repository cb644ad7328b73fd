"""Which architecture an encoder's tensors are of, and whether they fit one, built on the meta device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo import backbones
from zoo.errors import ReleaseError, ZooError
from zoo.release.convert.families import Family
from zoo.release.convert.listing import summary

_TRANSFORMER = "patch_embed.proj.weight"


def find_architecture(
    encoder: Mapping[str, Tensor],
    named: str | None,
    implied: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    family: Family,
    where: str,
) -> str:
    """Return the architecture of `encoder`: what the file says, where that fits, else the only one that fits.

    Args:
        encoder: named as timm names them.
        named: what the file says; its authors' word, which need not be timm's.
        implied: arguments of the architecture that the file's family implies.
        given: the user's, which win.
        family: whose file it is.
        where: the file, for the error.

    Raises:
        ReleaseError: when several of the family's architectures fit, or none does.
    """
    args = {**implied, **given}
    found = {key: tuple(value.shape) for key, value in encoder.items()}
    if (
        named is not None
        and (named in family.architectures or family.any_weights)
        and _fits(found, named, args)
    ):
        return named
    if family.any_weights:
        raise ReleaseError(
            f"{where}: does not say which architecture of timm it is of; give its name: --arch ARCH"
        )
    fitting = [name for name in _candidates(found, family) if _fits(found, name, args)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ReleaseError(
            f"{where}: several architectures fit its encoder: {', '.join(fitting)}; choose one: --arch"
            f" {fitting[0]}"
        )
    if named in family.architectures:
        check_fit(encoder, named, implied, given, family=family, where=where)  # says what differs
    if given and (refusals := _refusals(_candidates(found, family), args)):
        raise refusals[0]
    built = f" with {', '.join(f'{key}={value}' for key, value in args.items())}" if args else ""
    more = " or another name of timm's" if family.any_architecture else ""
    raise ReleaseError(
        f"{where}: none of the family's architectures{built} fits its encoder ({summary(found, limit=4)}):"
        f" tried {', '.join(_candidates(found, family))}; give one of them{more} to see what differs:"
        " --arch ARCH"
    )


def check_fit(
    encoder: Mapping[str, Tensor],
    arch: str,
    implied: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    family: Family,
    where: str,
) -> dict[str, Any]:
    """Make sure that `encoder` has all tensors of the headless `arch`, and no others.

    Shapes do not tell everything: timm's `resnetblur18` has those of `resnet18` and computes something else.
    So `arch` also has to be one that the family's authors can have meant.

    Args:
        encoder: named as timm names them.
        arch: a name of timm's.
        implied: arguments of the architecture that the file's family implies.
        given: the user's, which win.
        family: whose file it is.
        where: the file, for the error.

    Returns:
        The arguments to build it with.

    Raises:
        ReleaseError: listing what is missing, what is too much and what has another shape, and naming
            architectures that fit; or for one that fits and is not what the family means.
        ZooError: for an unknown architecture or argument.
    """
    args = {**implied, **given}
    refusal = None
    try:
        expected = _shapes(arch, args)
    except ZooError as error:
        expected, refusal = _shapes(arch, given), error
    found = {key: tuple(value.shape) for key, value in encoder.items()}
    reshaped = [
        f"{key} is {list(found[key])} instead of {list(shape)}"
        for key, shape in expected.items()
        if key in found and found[key] != shape
    ]
    problems = {
        "missing": summary(key for key in expected if key not in found),
        "unexpected": summary(key for key in found if key not in expected),
        "other shape": ", ".join([*reshaped[:5], *[f"{len(reshaped) - 5} more"] * (len(reshaped) > 5)]),
    }
    wrong = any(problems.values())
    if not wrong and arch in family.architectures:
        if refusal is not None:  # the same shapes, but not the same computation
            raise refusal
        return args
    fitting = [name for name in _candidates(found, family) if _fits(found, name, args)]
    hint = f". What fits: --arch {' or '.join(fitting)}" if fitting else ""
    if wrong:
        listing = "; ".join(f"{kind}: {keys}" for kind, keys in problems.items() if keys)
        raise ReleaseError(f"{where}: the encoder is no {arch}: {listing}{hint}")
    if fitting or not family.any_architecture:
        known = hint or f"; expected one of {', '.join(_candidates(found, family))}"
        raise ReleaseError(
            f"{where}: {arch} has these tensors, but is not what the files of this family hold: it may"
            f" compute something else{known}"
        )
    if refusal is not None:
        raise refusal
    return args


def _candidates(found: Mapping[str, tuple[int, ...]], family: Family) -> list[str]:
    transformer = _TRANSFORMER in found
    return [arch for arch in family.architectures if arch.startswith(("vit_", "swin_")) == transformer]


def _fits(found: Mapping[str, tuple[int, ...]], arch: str, args: Mapping[str, Any]) -> bool:
    try:
        return _shapes(arch, args) == found
    except ZooError:  # an architecture that does not take these arguments
        return False


def _refusals(architectures: Sequence[str], args: Mapping[str, Any]) -> list[ZooError]:
    """Return why architectures take no such arguments; nothing where one of them does."""
    refusals = list[ZooError]()
    for arch in architectures:
        try:
            _shapes(arch, args)
        except ZooError as error:
            refusals.append(error)
        else:
            return []
    return refusals


def _shapes(arch: str, args: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    try:
        with torch.device("meta"):
            model = backbones.create(arch, **args)
    except ZooError:  # wrong, or one that computes with values while it is built: only the latter succeeds
        with torch.random.fork_rng(devices=[]):
            model = backbones.create(arch, **args)
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}
