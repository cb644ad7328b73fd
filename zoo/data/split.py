"""Which operations of a view are done image by image on the host, and which on the batch of results."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.data import ops

_GIVES_ONE_SIZE = (ops.RandomResizedCrop, ops.PadCrop, ops.CenterCrop)


def split_view(view: Sequence[ops.Op]) -> tuple[list[ops.Op], list[ops.Op]]:
    """Return the first operations of a view, whose results have one size, and the rest.

    The first part ends with the crop that gives all images one size; without one, with a resize, which
    gives square images one size.
    """
    crops = [place for place, op in enumerate(view) if isinstance(op, _GIVES_ONE_SIZE)]
    resizes = [place for place, op in enumerate(view) if isinstance(op, ops.Resize)]
    end = (crops[:1] or resizes[:1] or [-1])[0] + 1
    return list(view[:end]), list(view[end:])
