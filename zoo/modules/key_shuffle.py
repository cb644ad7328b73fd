"""Which rank encodes which keys: the shuffle of `zoo.modules.batchnorm` over several ranks.

As with one rank a permutation of the whole batch is split into groups, and a group is on one rank whole. So
images travel, each to where its group is, and keys travel back; no rank gets more than its share.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from zoo.ranks import Ranks


class Layout(NamedTuple):
    """One rank's part of the shuffle.

    Attributes:
        rows: own rows `[n]`, in the order in which they are sent: to rank 0 first.
        sent: how many go to each rank.
        received: how many come from each rank.
        order: where each row that arrives stands among those encoded here.
        groups: how many groups they are.
    """

    rows: Tensor
    sent: list[int]
    received: list[int]
    order: Tensor
    groups: int


def lay_out(permutation: Tensor, counts: tuple[int, ...], rank: int, groups: int) -> Layout:
    """Divide a permuted batch among ranks.

    One rank's groups are the places `[g::groups]` of the permuted batch, fewer than asked for where they
    would have less than two rows. Where the ranks divide their number, each takes as many that follow each
    other. Otherwise each takes as equal a share of the places as can be, with `groups // ranks` groups of its
    own, at least one.

    Args:
        permutation: the row of the batch at each place `[N]`, on the host.
        counts: rows of each rank.
        rank: whose part to return.
        groups: of the whole batch.
    """
    total, size = len(permutation), len(counts)
    groups = max(1, min(groups, total // 2))
    own_groups = max(1, groups // size)
    places = torch.arange(total)
    encoder = places % groups // own_groups if groups % size == 0 else places * size // total
    owner = torch.arange(size).repeat_interleave(torch.tensor(counts))[permutation]
    # both sides name a pair of ranks' rows in the order of their places
    own, to, come = owner == rank, encoder[owner == rank], owner[encoder == rank]
    return Layout(
        rows=(permutation[own] - sum(counts[:rank]))[to.argsort(stable=True)],
        sent=to.bincount(minlength=size).tolist(),
        received=come.bincount(minlength=size).tolist(),
        order=come.argsort(stable=True),
        groups=own_groups,
    )


class KeyShuffle:
    """Send images to where they are encoded, and the keys back.

    Args:
        ranks: who takes part, each with its rows of the batch.
        groups: with BatchNorm statistics of their own, of the whole batch.
        device: where images and keys are.
    """

    def __init__(self, ranks: Ranks, groups: int, device: torch.device) -> None:
        assert ranks.generator is not None  # several ranks have one
        generator = ranks.generator
        if device.type != "cpu":  # how much goes where is known without waiting for the device
            generator = torch.Generator().manual_seed(generator.initial_seed())
        permutation = torch.randperm(sum(ranks.counts), generator=generator)
        rows, self._sent, self._received, order, self.groups = lay_out(
            permutation, ranks.counts, ranks.rank, groups
        )
        self._ranks = ranks
        if device.type != "cpu":
            rows, order = (places.pin_memory().to(device, non_blocking=True) for places in (rows, order))
        self._rows, self._order = rows, order

    def scatter(self, rows: Tensor) -> Tensor:
        """Return the rows to encode here, group by group as `zoo.modules.batchnorm` has them."""
        channels_last = rows.dim() == 4 and rows.is_contiguous(memory_format=torch.channels_last)
        if channels_last:  # sent as they lie, and so they arrive
            rows = rows.movedim(1, -1)
        arrived = self._ranks.exchange(rows, torch.split(self._rows, self._sent), self._received)
        ordered = torch.empty_like(arrived).index_copy_(0, self._order, arrived)
        return ordered.movedim(-1, 1) if channels_last else ordered

    def restore(self, keys: Tensor) -> Tensor:
        """Return the keys of this rank's own rows in their order, given those encoded here."""
        arrived = self._ranks.exchange(keys, torch.split(self._order, self._received), self._sent)
        return torch.empty_like(arrived).index_copy_(0, self._rows, arrived)
