"""A batch in parts, and what became of them as if they had been one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.data import Batch
from zoo.objectives import Output
from zoo.ranks import Ranks, part_of
from zoo.training.nested import map_tensors, tensors_in


def layouts(rows: Sequence[int], wanted: int) -> list[tuple[int, ...]]:
    """Return how many images each part of a batch has on each rank, that has `rows` of them.

    There are fewer parts than wanted where one would have a single image, too few for BatchNorm.
    """
    count = max(1, min(wanted, min(rows) // 2))
    cut = ([part_of(have, part, count) for have in rows] for part in range(count))
    return [tuple(stop - start for start, stop in places) for places in cut]


def split(batch: Batch, count: int) -> list[Batch]:
    """Cut a batch into `count` parts as equal as can be, the larger ones first."""
    views = [view.tensor_split(count) for view in batch.views]
    candidates = [None] * count if batch.candidates is None else batch.candidates.tensor_split(count)
    rest = zip(batch.labels.tensor_split(count), batch.index.tensor_split(count), candidates, strict=True)
    return [Batch(tuple(view[part] for view in views), *row) for part, row in enumerate(rest)]


def join(outputs: Sequence[Output], shares: Sequence[float]) -> Output:
    """Join the outputs of a batch's parts, whose shares of its images are `shares`.

    Loss and metrics are weighted means, of metrics over the parts in which they are not NaN (a class, say, is
    not in all of them); rows to carry follow each other as they did in the batch.
    """
    if len(outputs) == 1:
        return outputs[0]

    def mean(values: Sequence[Tensor]) -> Tensor:
        # by numbers: a tensor of them would be copied from the host, which waits and which no graph can hold
        return torch.stack([value * share for value, share in zip(values, shares, strict=True)]).sum()

    def mean_of_found(values: Sequence[Tensor]) -> Tensor:
        weighted = torch.stack([value * share for value, share in zip(values, shares, strict=True)])
        found = torch.stack([~value.isnan() * share for value, share in zip(values, shares, strict=True)])
        return weighted.nansum() / found.sum()

    return Output(
        mean([output.loss.detach() for output in outputs]),
        {name: mean_of_found([output.metrics[name] for output in outputs]) for name in outputs[0].metrics},
        _rows([output.carry for output in outputs]),
    )


def gathered(batch: Batch, output: Output, ranks: Ranks) -> tuple[Batch, Output]:
    """Return what `Objective.update` needs of all ranks' rows: labels, places and what the step carries."""
    if ranks.alone:
        return batch, output
    labels, index, *carried = ranks.gather_rows([batch.labels, batch.index, *tensors_in(output.carry)])
    rest = iter(carried)
    return Batch((), labels, index), output._replace(carry=map_tensors(output.carry, lambda _: next(rest)))


def _rows(carried: Sequence[Any]) -> Any:
    """Concatenate tensors `[b, ...]`, or tuples and dicts of them, along their rows."""
    first = carried[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return torch.cat(list(carried))
    if isinstance(first, Mapping):
        return {name: _rows([each[name] for each in carried]) for name in first}
    fields = [_rows(field) for field in zip(*carried, strict=True)]
    return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
