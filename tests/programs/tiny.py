"""Backbones without BatchNorm, with which several ranks compute what one does."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torch import nn

from zoo import backbones

VIT = ("name=test_vit.x", "backbone.arch=test_vit", "backbone.args={img_size: 32, patch_size: 8}")
"""Changes of a recipe: an encoder without BatchNorm."""


class RowNorm(nn.GroupNorm):
    """In the place of a head's BatchNorm: statistics are of each row."""

    def __init__(self, features: int, **_: object) -> None:
        super().__init__(4, features)


@contextmanager
def norm_free() -> Iterator[None]:
    """Build every backbone and head with GroupNorm in place of BatchNorm inside the block."""
    create = backbones.create

    def without(arch: str, **args: object) -> nn.Module:
        return grouped(create(arch, **args))

    heads = mock.patch.object(nn, "BatchNorm1d", RowNorm)
    with heads, mock.patch.object(backbones, "create", without):
        yield


def grouped(module: nn.Module) -> nn.Module:
    """Replace BatchNorm2d by GroupNorm of 4 groups, in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(4, child.num_features))
        else:
            grouped(child)
    return module
