"""Views replayed as a CUDA graph beside the ordinary ones, on a GPU that is there or pretended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from zoo import catalog
from zoo.data import Batch, ImageDataset, TrainLoader, ViewsConfig
from zoo.data.stores import ArrayStore
from zoo.training import Recipe

IMAGES, SIZE, BATCH = 22, 32, 6
WHOLE = 9
"""Whole batches among the steps 2 to 13; the others are the small last ones of an epoch."""
OTHERS: list[list[dict[str, Any]]] = [
    [{"op": "resize", "size": 40}, {"op": "center_crop", "size": 32}, {"op": "random_erasing", "p": 0.7}],
    [{"op": "solarize", "p": 0.5}, {"op": "random_erasing", "p": 0.7, "mode": "pixel"}],
]
"""Operations that no shipped recipe replays."""


def every_view() -> list[Any]:
    """Each list of operations that shipped recipes make on the device once, and the operations they lack."""
    params = {str(OTHERS): pytest.param(OTHERS, id="others")}
    for name in catalog.list_recipes():
        views = Recipe.load(name).views
        if views.backend == "tensor":
            params.setdefault(str(views.train), pytest.param(views.train, id=name))
    return [*params.values()]


def made_both_ways(views: Any, device: torch.device) -> None:
    """Compare the batches bit for bit: also small ones, with candidates, and with an image for a bad one."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (IMAGES, SIZE, SIZE, 3), generator=generator, dtype=torch.uint8)
    labels = torch.arange(IMAGES).numpy() % 4
    candidates = torch.eye(4, dtype=torch.bool).numpy()[labels]
    data = ImageDataset(ArrayStore(pixels.numpy(), "a"), labels, list("0123")).with_candidates(candidates)
    config = ViewsConfig.model_validate({"backend": "tensor", "train": views, "eval": {"size": SIZE}})
    kept: list[list[Batch]] = []
    for replay in (False, True):
        loader = TrainLoader(
            data,
            config,
            mean=(0.5, 0.4, 0.3),
            std=(0.2, 0.3, 0.4),
            batch_size=BATCH,
            drop_last=False,
            seed=3,
            device=device,
            replay=replay,
        )
        source = torch.arange(IMAGES)
        source[0] = 1
        loader._feed._source = source.to(device)  # type: ignore[union-attr]
        kept.append(list(loader.stream(2, 14)))
    assert [len(batch.index) for batch in kept[1]].count(BATCH) == WHOLE
    for expected, found in zip(*kept, strict=True):
        for a, b in zip(tree_leaves(tuple(expected)), tree_leaves(tuple(found)), strict=True):
            assert a.stride() == b.stride() and torch.equal(a.cpu(), b.cpu())
