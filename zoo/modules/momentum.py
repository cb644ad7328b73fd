"""The key encoder: a slowly moving copy of the query encoder, and the shuffle of its keys over ranks.

As with one rank a permutation of the whole batch is split into groups (`zoo.modules.batchnorm`), and a group
is on one rank whole. So images travel, each to where its group is, and keys travel back; no rank gets more
than its share.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.modules.batchnorm import convert_ghost_batchnorm, set_ghosts
from zoo.ranks import ALONE, Ranks


class MomentumEncoder(nn.Module):
    """Exponential moving average of a student's parameters.

    Its buffers (BatchNorm's running statistics) are its own: they follow the keys it computes, not the
    student's, as in the authors' code. It never gets gradients.

    Args:
        student: what to follow; copied now, not referenced.
        key_groups: number of groups whose BatchNorm statistics are kept apart; see
            `zoo.modules.batchnorm`. 1 leaves BatchNorm as it is. Of the whole batch, on any number of ranks:
            where that divides it the keys are those of one rank, else each rank has `key_groups // ranks`
            groups, at least one.

    Attributes:
        ranks: the processes that each have some rows of the batch.

    Source: He et al. 2020, https://arxiv.org/abs/1911.05722, section 3.2.
    """

    ranks: Ranks = ALONE

    def __init__(self, student: nn.Module, *, key_groups: int = 1) -> None:
        super().__init__()
        self.module = copy.deepcopy(student).requires_grad_(False)
        if key_groups > 1:
            self.module = convert_ghost_batchnorm(self.module, key_groups)
        self.shuffle = key_groups > 1
        self._key_groups = self._groups_here = key_groups
        self._images_here = 0
        self._moved = _owners(self.module)
        self._followed: tuple[tuple[nn.Module, ...], list[nn.Module]] = ((), [])

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Encode keys `[B, ...]` without gradient, shuffled where BatchNorm could leak the pairing."""
        if not self.shuffle:
            return self.module(x)  # type: ignore[no-any-return]
        if not self.ranks.alone:
            return self._over_ranks(x)
        order = torch.randperm(len(x), device=x.device)
        # empty_like and index_copy_ undo the permutation without computing its inverse
        shuffled = self._encode(x[order])
        return torch.empty_like(shuffled).index_copy_(0, order, shuffled)

    def _over_ranks(self, x: Tensor) -> Tensor:
        shuffle = KeyShuffle(self.ranks, self._key_groups, x.device)
        if shuffle.groups != self._groups_here:
            set_ghosts(self.module, groups=shuffle.groups)
            self._groups_here = shuffle.groups
        return shuffle.restore(self._encode(shuffle.scatter(x)))

    def _encode(self, x: Tensor) -> Tensor:
        if len(x) != self._images_here:
            set_ghosts(self.module, images=len(x))
            self._images_here = len(x)
        return self.module(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def update(self, students: Sequence[nn.Module], momentum: float) -> None:
        """Move every parameter toward the students', in order; buffers are left alone.

        Args:
            students: the parts, one after the other, of what was given at the start; the same every time.
            momentum: m of `zoo.functional.ema_update`.
        """
        if self._followed[0] != tuple(students):
            self._followed = (tuple(students), _owners(*students))
        functional.ema_update(_parameters(self._moved), _parameters(self._followed[1]), momentum)


def _owners(*roots: nn.Module) -> list[nn.Module]:
    """Modules with parameters of their own: to walk the tree takes longer than to move a ResNet-32."""
    return [module for root in roots for module in root.modules() if module._parameters]


def _parameters(owners: list[nn.Module]) -> list[Tensor]:
    """The owners' parameters as they are now, each once."""
    return list(dict.fromkeys(p for owner in owners for p in owner._parameters.values() if p is not None))


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
        """Return the rows to encode here, group by group as ghost BatchNorm has them."""
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
