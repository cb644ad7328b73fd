"""What training does to the classes: the gradients of images and centers, looked at on some of the steps.

On such a step the gradient of the loss with respect to every image's pooled features is kept, which the
backward pass computes anyway, and what it says is added up by class on the device. Nothing here changes the
training, draws a random number or waits for the device.

Source of the view: Cui et al. 2021 (PaCo), https://arxiv.org/abs/2107.12028, figure 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from zoo.functional.checks import to_float32
from zoo.objectives import Objective, Output
from zoo.objectives.measures import ROWS, Seen, measure
from zoo.ranks import Ranks

MOST_CLASSES = 10_000
"""Of more classes nothing is written class by class."""

ClassRow = dict[str, Any]


class Observation:
    """Measures of single steps, and sums over classes since the last row.

    Args:
        objective: already on its device.
        every: steps between looks; None: none.
        ranks: that do the step together; measures and sums are over all of them.
        steps: of the whole training, the last of which is looked at in any case.
    """

    def __init__(self, objective: Objective, every: int | None, ranks: Ranks, steps: int) -> None:
        self._objective, self._every, self._ranks, self._last = objective, every, ranks, steps
        members = objective.group_members
        self._classes = members.shape[1]
        self._has_features = self._has_centers = False
        self._members = members.double()
        # Images, feature gradients, what these are of a step, center gradients; the last column is for images
        # of no known class. In float64, which counts up to any number of images.
        self._sums = torch.zeros(4, self._classes + 1, dtype=torch.float64, device=members.device)
        self._steps = torch.zeros((), dtype=torch.float64, device=members.device)

    def due(self, step: int) -> bool:
        """Whether step number `step` (from 0) is looked at."""
        if self._every is None:
            return False
        return (step + 1) % self._every == 0 or step + 1 == self._last

    @contextmanager
    def watching(self) -> Iterator[list[Tensor]]:
        """Collect what every forward in the block says its features are, whose gradients are then kept.

        On steps that are not looked at there are none. The hook is on the objective itself and comes first:
        what wraps it for several ranks may hand on copies, and gets an output without features.
        """
        seen: list[Tensor] = []

        def take(_module: nn.Module, _inputs: Any, output: Output) -> Output:
            features = output.features
            if self._objective.observing and features is not None and features.requires_grad:
                features.retain_grad()
                seen.append(features)
            return output._replace(features=None)

        handle = self._objective.register_forward_hook(take, prepend=True)
        try:
            yield seen
        finally:
            handle.remove()

    @torch.no_grad()
    def take(
        self,
        parameters: Sequence[Tensor],
        features: Sequence[Tensor],
        labels: Sequence[Tensor],
        total: int,
        scale: Tensor,
    ) -> dict[str, Tensor]:
        """Take in a step whose gradients are there, neither clipped nor unscaled.

        An image's gradient is that of the whole batch's loss with respect to its features: also of what it is
        to others, as a contrast. The loss, a mean over the batch, is taken times `total`, so that an image
        that is in its own term alone has that term's gradient, whatever the size of the batch. A step whose
        gradients are not finite, as fp16 has them now and then, counts for nothing.

        Args:
            parameters: that are trained.
            features: of this rank's images, in parts `[b, ..., D_f]`; none if the objective does not say.
            labels: their classes, in parts `[b]`; -1 where unknown.
            total: images of all ranks.
            scale: what the loss was multiplied by before the backward pass `[]`.

        Returns:
            What to record of this step: `gradient_norm`, and `feature_gradient_GROUP`.
        """
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = norm / scale
        sums = self._by_class(features, labels, total, scale)
        self._add_centers(sums[3, : self._classes], scale)
        good = norm.isfinite() & sums.isfinite().all()
        sums = torch.where(good, sums, 0)
        self._sums += sums
        self._steps += good
        metrics = {"gradient_norm": torch.where(good, norm, torch.nan)}
        if features:
            self._has_features = True
            groups = self._objective.class_groups()
            images, gradients = (self._members @ sums[:2, : self._classes].T).unbind(dim=1)
            metrics |= groups.named("feature_gradient", (gradients / images).float())
        return metrics

    @torch.no_grad()
    def measure(self, seen: Seen | None) -> dict[str, Tensor]:
        """Return what to record of the first images of the whole batch, the same on every rank.

        Args:
            seen: what this rank's part of the batch has of them; None if the objective does not say.
        """
        if seen is None:
            return {}
        first = tree_map(lambda rows: rows[:ROWS], seen)
        ranks, counts = self._ranks, self._ranks.counts
        ranks.counts = tuple(min(count, ROWS) for count in counts)
        try:
            everyones = iter(ranks.gather_rows(tree_leaves(first)))
        finally:
            ranks.counts = counts
        return measure(tree_map(lambda _: next(everyones), first), self._objective.class_groups())

    def _by_class(
        self, features: Sequence[Tensor], labels: Sequence[Tensor], total: int, scale: Tensor
    ) -> Tensor:
        """Return sums as those that are kept, of this step: all but the centers'."""
        sums = torch.zeros_like(self._sums)
        for part, of_part in enumerate(labels):
            seen = [torch.ones_like(of_part, dtype=sums.dtype)]
            if features:
                gradient = features[part].grad
                assert gradient is not None
                norms = to_float32(gradient).flatten(start_dim=1).norm(dim=1).to(sums.dtype) / scale
                seen += [norms * (total / self._ranks.size), norms / self._ranks.size]
            place = torch.where(of_part >= 0, of_part, self._classes)
            sums[: len(seen)].index_add_(1, place, torch.stack(seen))
        return self._ranks.all_reduce(sums)

    def _add_centers(self, sums: Tensor, scale: Tensor) -> None:
        """Add the norm of the gradient of each class's center to `sums` `[C]`."""
        centers = self._objective.center_parameter()
        if centers is not None and centers.grad is not None:
            self._has_centers = True
            sums += to_float32(centers.grad).flatten(start_dim=1).norm(dim=1) / scale

    def class_row(self, facts: Mapping[str, float]) -> ClassRow | None:
        """Return the row of what was seen since the last one, and begin anew; None if nothing was.

        Waits for the device: for when a checkpoint is due, which waits for it as well.
        """
        steps = float(self._steps)
        if steps == 0 or self._classes > MOST_CLASSES or not (self._has_features or self._has_centers):
            self.forget()
            return None
        images, gradients, contributions, centers = self._sums[:, : self._classes].tolist()
        self.forget()
        means = [g / n if n else None for g, n in zip(gradients, images, strict=True)]
        return {
            **facts,
            "looks": int(steps),
            "images": [int(n) for n in images],
            "feature_gradient": [_short(mean) for mean in means] if self._has_features else None,
            "class_gradient": [_short(each / steps) for each in contributions]
            if self._has_features
            else None,
            "center_gradient": [_short(each / steps) for each in centers] if self._has_centers else None,
        }

    def forget(self) -> None:
        """Begin anew."""
        self._sums.zero_()
        self._steps.zero_()


def _short(value: float | None) -> float | None:
    """Keep six digits: thousands of classes are written at every checkpoint."""
    return None if value is None else float(f"{value:.6g}")
