"""The key encoder: a slowly moving copy of the query encoder."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.modules.batchnorm import convert_ghost_batchnorm, set_groups, set_images
from zoo.modules.key_shuffle import KeyShuffle
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
            set_groups(self.module, shuffle.groups)
            self._groups_here = shuffle.groups
        return shuffle.restore(self._encode(shuffle.scatter(x)))

    def _encode(self, x: Tensor) -> Tensor:
        if len(x) != self._images_here:
            set_images(self.module, len(x))
            self._images_here = len(x)
        return self.module(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def update(self, students: Sequence[nn.Module], momentum: float | Tensor) -> None:
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
