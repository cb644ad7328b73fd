"""Objectives and their modules on several ranks, as torchrun starts them: what one rank computes."""

from __future__ import annotations

import pytest
import torch

from tests.warm import run_ranks
from zoo.modules.momentum import Layout, lay_out
from zoo.objectives import OBJECTIVES

ROUNDING = {"paco groups bf16": 0.3, "moco groups not divided": 0.3}
"""How much a loss may differ where the ranks are not meant to equal one, after steps of a few images."""


@pytest.mark.parametrize("size", [2, 3])
def test_every_objective_on_several_ranks_equals_one_rank_with_the_whole_batch(size: int) -> None:
    done = run_ranks("tests/programs/objectives.py", ranks=size)
    assert done.returncode == 0, done.stderr
    found = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert {case.split()[0] for case in found} == set(OBJECTIVES)
    for case, figures in found.items():
        difference, same = figures.split()
        assert float(difference) < ROUNDING.get(case, 1e-9), case
        assert same == "same", case


def encoded(counts: tuple[int, ...], layouts: list[Layout]) -> list[list[int]]:
    """Rows of the batch that each rank encodes, in its order, as the exchange delivers them."""
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    found = []
    for rank, layout in enumerate(layouts):
        arrived = [
            starts[sender] + row
            for sender, other in enumerate(layouts)
            for row in other.rows.split(other.sent)[rank].tolist()
        ]
        assert layout.received == [other.sent[rank] for other in layouts]
        ordered = [-1] * len(arrived)
        for place, row in zip(layout.order.tolist(), arrived, strict=True):
            ordered[place] = row
        found.append(ordered)
    return found


@pytest.mark.parametrize("total", [16, 17, 23, 9, 8])
@pytest.mark.parametrize("groups", [4, 8, 12])
def test_ranks_that_divide_the_groups_share_them_as_one_rank_has_them(total: int, groups: int) -> None:
    size = 4
    counts = tuple(len(part) for part in torch.arange(total).tensor_split(size))
    permutation = torch.randperm(total, generator=torch.Generator().manual_seed(total))
    layouts = [lay_out(permutation, counts, rank, groups) for rank in range(size)]
    of_one_rank = min(groups, total // 2)
    rows = encoded(counts, layouts)
    assert sorted(row for own in rows for row in own) == list(range(total))
    if of_one_rank % size == 0:
        found = [
            own[g :: layout.groups]
            for own, layout in zip(rows, layouts, strict=True)
            for g in range(layout.groups)
        ]
        assert found == [permutation[g::of_one_rank].tolist() for g in range(of_one_rank)]
    else:  # shares as equal as can be
        lengths = [len(own) for own in rows]
        assert max(lengths) - min(lengths) <= 1
        assert {layout.groups for layout in layouts} == {max(1, of_one_rank // size)}
