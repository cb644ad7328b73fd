"""Figures of a training, computed every n steps from what the objective's forward pass holds anyway.

Nothing here changes the training, draws a random number or waits for the device. Which figures there are
never depends on values: what a batch lacks (two images of one class, say) is NaN. Scores, geometry and
probabilities are of the first rows of the batch; gradients of all, added up by class.

Names that are read of `Output.held`, all optional:

- `q`, `k`: unit rows of the two views `[B, D]`, before FT; or `views`, both, where no scores are taken.
- `queue`, `queue_labels`, `valid`: the keys that q is contrasted with `[K, D]`, their classes and which are
  filled `[K]`; without a queue these are the second views of the batch and `other_keys` `[M, D]`, those of
  other ranks, with `other_classes` `[M]`.
- `classes`: classes of the rows of q `[B]`, of the kind that the queue has; without, all keys are negatives.
- the same names with `_ft`: after the feature transformation.
- `tau`, `center_logits` `[B, C]` and `others`, as they enter the losses with labels.

Sources: by class, Cui et al. 2021 (PaCo), https://arxiv.org/abs/2107.12028, figure 2; scores, Zhu et al. 2021
(FT), https://arxiv.org/abs/2108.02982, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.data import Batch
from zoo.functional.checks import to_float32
from zoo.objectives import Objective, Output
from zoo.objectives.paco import GPaCo, PaCo
from zoo.objectives.sup_con import SupCon
from zoo.ranks import Ranks

ROWS = 256
"""Of how many of a batch's first images scores, pairs and probabilities are measured at most."""
SCORED_KEYS = 4096
"""Of how many keys at least, evenly spaced: of 65,536 all would take a third of the loss's own time."""
MOST_CLASSES = 10_000
"""Of more classes nothing is written class by class."""

Rows = dict[str, Tensor]
"""Of some images, in their order: `labels` `[n]`, unit rows `q` and `k` `[n, D]`, and by a figure's name one
value of each image `[n]`, or mean, variance and number of its scores `[n, 3]`."""


class Observation:
    """Figures of single steps, and sums over classes since the last row.

    Args:
        objective: already on its device.
        every: steps between observed ones; None: none is.
        ranks: that do the step together; all figures are over all of them.
        steps: of the whole training, the last of which is observed in any case.
    """

    def __init__(self, objective: Objective, every: int | None, ranks: Ranks, steps: int) -> None:
        self._objective, self._every, self._ranks, self._last = objective, every, ranks, steps
        counts = objective.class_counts
        self._classes = len(counts)
        members = {name: of & (counts > 0) for name, of in functional.frequency_groups(counts).items()}
        self._groups = {name: of for name, of in members.items() if bool(of.any())}
        self._features: Tensor | None = None  # of the encoder's first call
        self._parts: list[Rows] = []
        self._has_features = self._has_centers = False
        # Float64 counts up to any number of images; the last column is for images of no known class. Rows:
        # images, gradients of each one's own loss, gradients of the batch's loss, gradients of the centers.
        self._sums = torch.zeros(4, len(counts) + 1, dtype=torch.float64, device=counts.device)
        self._step = torch.zeros_like(self._sums[:2])  # images, and gradients not yet scaled
        self._steps = torch.zeros_like(self._sums[0, 0])

    def due(self, step: int) -> bool:
        """Whether step number `step` (from 0) is observed."""
        return self._every is not None and ((step + 1) % self._every == 0 or step + 1 == self._last)

    @contextmanager
    def watching(self, observed: bool) -> Iterator[None]:
        """Keep the gradient of the encoder's features inside the block, on an observed step."""
        if not observed:
            yield
            return
        self._parts, self._features = [], None
        self._step.zero_()

        def keep(features: Tensor) -> None:
            if self._features is None:
                self._features = features
                if features.requires_grad:
                    features.retain_grad()
                else:  # of a frozen encoder: its own gradient has no other use
                    features.requires_grad_()

        with _calls(self._objective.encoder, keep):
            yield

    @torch.no_grad()
    def take(self, part: Batch, output: Output) -> None:
        """Take in a part of the batch, this rank's rows, whose backward pass is done.

        Where the encoder's first call had several views of the images, one view's rows after the other's, an
        image's gradient is that of all of them.
        """
        self._parts.append(rows_of(self._objective, part, output.held or {}))
        labels = part.labels
        values = [torch.ones_like(labels, dtype=self._step.dtype)]
        gradient = None if self._features is None else self._features.grad
        if gradient is not None and len(gradient) % len(labels) == 0 and not self._objective.mixes_images:
            self._has_features = True
            views = to_float32(gradient).reshape(-1, len(labels), *gradient.shape[1:])
            values.append(views.transpose(0, 1).flatten(start_dim=1).norm(dim=1).to(self._step.dtype))
        classes = torch.where(labels >= 0, labels, self._classes)
        self._step[: len(values)].index_add_(1, classes, torch.stack(values))
        self._features = None

    @torch.no_grad()
    def figures(self, parameters: Sequence[Tensor], total: int, scale: Tensor) -> dict[str, Tensor]:
        """Return what to record of this step, the same on every rank; its gradients are there, not clipped.

        An image's gradient is that of the whole batch's loss, also of what the image is to others in a
        contrast. The loss, a mean over the batch, is taken times `total`, so that the size of the batch does
        not matter. A step whose gradients are not finite, as fp16 has them now and then, counts for nothing.

        Args:
            parameters: that are trained.
            total: images of all ranks.
            scale: what the loss was multiplied by before the backward pass `[]`.
        """
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]) / scale
        images, gradients = self._ranks.all_reduce(self._step).unbind()
        gradients = gradients / (self._ranks.size * scale)
        sums = torch.stack([images, gradients * total, gradients, self._center_gradients() / scale])
        good = norm.isfinite() & sums.isfinite().all()
        sums = torch.where(good, sums, 0)
        self._sums += sums
        self._steps += good
        found = {"gradient_norm": torch.where(good, norm, torch.nan)}
        if self._has_features:
            for name, members in self._groups.items():
                images, gradients = (sums[:2, : self._classes] * members).sum(dim=1).unbind()
                found[f"feature_gradient_{name}"] = (gradients / images).float()
        centers = self._objective.centers()
        if centers is not None:
            found |= center_figures(centers.weight, self._groups)
        return found | figures_of(self._of_all_ranks(), self._groups)

    def _of_all_ranks(self) -> Rows:
        """Join the rows of all parts and ranks; of any division of the batch, its first ones."""
        own = {name: torch.cat([part[name] for part in self._parts])[:ROWS] for name in self._parts[0]}
        ranks, counts = self._ranks, self._ranks.counts
        ranks.counts = tuple(min(count, ROWS) for count in counts)
        gathered = ranks.gather_rows([*own.values()])
        ranks.counts = counts
        return {name: rows[:ROWS] for name, rows in zip(own, gathered, strict=True)}

    def _center_gradients(self) -> Tensor:
        """Return the norm of the gradient of each class's center `[C + 1]`; zeros where there is none."""
        # the trained weight whose rows, one per class `[C, ...]`, become the centers
        owner = getattr(self._objective, "learned", self._objective)
        weight = getattr(getattr(owner, "classifier", None), "weight", None)
        norms = torch.zeros_like(self._sums[3])
        if weight is not None and weight.grad is not None:
            self._has_centers = True
            norms[: self._classes] = to_float32(weight.grad).flatten(start_dim=1).norm(dim=1)
        return norms

    def class_row(self, facts: Mapping[str, float]) -> dict[str, Any] | None:
        """Return what was observed since the last row, see `RunFolder.class_rows`; None if nothing was.

        Waits for the device: for when a checkpoint is due, which waits for it as well.
        """
        steps = float(self._steps)
        images, gradients, contributions, centers = self._sums[:, : self._classes].tolist()
        self.forget()
        if steps == 0 or self._classes > MOST_CLASSES or not (self._has_features or self._has_centers):
            return None
        means = [_short(g / n) if n else None for g, n in zip(gradients, images, strict=True)]
        return {
            **facts,
            "looks": int(steps),
            "images": [int(n) for n in images],
            "feature_gradient": means if self._has_features else None,
            "class_gradient": [_short(x / steps) for x in contributions] if self._has_features else None,
            "center_gradient": [_short(x / steps) for x in centers] if self._has_centers else None,
        }

    def forget(self) -> None:
        """Begin anew."""
        self._sums.zero_()
        self._steps.zero_()


@contextmanager
def _calls(encoder: nn.Module, keep: Callable[[Tensor], None]) -> Iterator[None]:
    """Hand what `encoder` returns to `keep`, inside the block; a compiled module does not see new hooks."""
    before = encoder._compiled_call_impl
    call = before or encoder._call_impl

    def watched(*args: Any, **kwargs: Any) -> Any:
        features = call(*args, **kwargs)
        keep(features)
        return features

    encoder._compiled_call_impl = watched
    try:
        yield
    finally:
        encoder._compiled_call_impl = before


@torch.no_grad()
def rows_of(objective: Objective, part: Batch, held: Mapping[str, Any]) -> Rows:
    """Return the rows of a part's first images."""
    rows = {"labels": part.labels[:ROWS]}
    q, k = held.get("views") or (held.get("q"), held.get("k"))
    if q is not None and k is not None:
        rows |= {"q": q[:ROWS], "k": k[:ROWS]}
    for ft in ("", "_ft"):
        if f"q{ft}" in held:
            rows |= _scores(held, ft)
    if isinstance(objective, PaCo | GPaCo | SupCon):
        rows |= _probabilities(objective, held)
    return rows


def _scores(held: Mapping[str, Any], ft: str) -> Rows:
    """Moments `[n, 3]` of scores: two views of an image, keys of other classes, keys of its own class."""
    q, k = to_float32(held[f"q{ft}"][:ROWS]), to_float32(held[f"k{ft}"])
    own = held["classes"][:ROWS, None] if "classes" in held else None
    queued = f"queue{ft}" in held
    if queued:
        queue = held[f"queue{ft}"]
        chosen = slice(None, None, max(len(queue) // SCORED_KEYS, 1))
        keys, classes = to_float32(queue[chosen]), held[f"queue_labels{ft}"][chosen]
        there = held[f"valid{ft}"][chosen] if own is None else classes >= 0
    else:
        keys, classes, more = k, held.get("classes"), held.get("other_keys")
        if more is not None:
            keys = torch.cat([k, to_float32(more)])
            classes = None if classes is None else torch.cat([classes, held["other_classes"]])
        there = torch.ones(len(q), len(keys), dtype=torch.bool, device=q.device).fill_diagonal_(False)
    with torch.autocast(q.device.type, enabled=False):
        scores = q @ keys.T
        pairs = (q * k[:ROWS]).sum(dim=1)
    negative = there.expand_as(scores) if own is None else (own != classes) & there
    found = {
        f"positive{ft}": torch.stack([pairs, torch.zeros_like(pairs), torch.ones_like(pairs)], dim=1),
        f"negative{ft}": moments(scores, negative),
    }
    if own is not None and queued:  # the queue holds positives too
        found[f"same_class{ft}"] = moments(scores, (own == classes) & there)
    return found


def _probabilities(objective: PaCo | GPaCo | SupCon, held: Mapping[str, Any]) -> Rows:
    """What the softmax of each anchor gives to its positives, and what it would where the loss is least.

    SupCon is PaCo without centers: their weight beta among the positives is 0.
    """
    after = {name: held.get(f"{name}_ft", held[name]) for name in ("q", "k", "queue", "queue_labels")}
    centers, alpha, beta, gamma, smoothing = None, 1.0, 0.0, 1.0, 0.0
    if not isinstance(objective, SupCon):
        config = objective.config
        centers = (held["center_logits"] + objective.learned.log_prior) / config.center_tau
        alpha, beta, gamma, smoothing = config.alpha, config.beta, config.gamma, config.label_smoothing
    found = functional.contrast_probabilities(
        **after,
        labels=held["classes"],
        centers=centers,
        tau=held["tau"],
        gamma=gamma,
        others=held["others"],
        anchors=ROWS,
    )
    sides = {"": found}
    if gamma > 0:  # without samples in the denominator the loss has no minimum
        sides["_optimum"] = functional.paco_optimum(
            found.positives, alpha=alpha, beta=beta, gamma=gamma, label_smoothing=smoothing
        )
    rows = {}
    for suffix, side in sides.items():
        # the optimum of SupCon's anchors without positives is infinite: they have none
        rows[f"pair_probability{suffix}"] = side.pair.masked_fill(side.pair.isinf(), torch.nan)
        if centers is not None:
            rows |= {f"p_sup{suffix}": side.p_sup, f"center_probability{suffix}": side.center}
    return rows


@torch.no_grad()
def figures_of(rows: Rows, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what to record of rows of the whole batch.

    That is `NAME_score` and `NAME_variance` of all scores of a name, the mean of every other value, P_sup
    also for each of the `groups` of classes `[C]` (bool, by name); of the views alignment, and the first's
    uniformity and tolerance (Wang and Isola 2020, https://arxiv.org/abs/2005.10242; Wang and Liu 2021,
    https://arxiv.org/abs/2012.09740).
    """
    found = dict[str, Tensor]()
    labels = rows["labels"]
    if "q" in rows:
        found["alignment"] = functional.alignment(rows["q"], rows["k"])
        found["uniformity"] = functional.uniformity(rows["q"])
        found["tolerance"] = functional.tolerance(rows["q"], labels)
    for name, values in rows.items():
        if name in ("labels", "q", "k"):
            continue
        if values.ndim == 1:
            found[name] = values.nanmean()  # NaN is of an image that has no such value
            if name.startswith("p_sup"):
                found |= group_means(name, values, labels, groups)
        else:
            kind, ft = name.removesuffix("_ft"), "_ft" if name.endswith("_ft") else ""
            found[f"{kind}_score{ft}"], found[f"{kind}_variance{ft}"] = pooled(values)
    return found


def moments(scores: Tensor, chosen: Tensor) -> Tensor:
    """Mean, variance and number `[N, 3]` of the `chosen` (bool) of each anchor's `scores` `[N, K]`.

    Mean and variance, of the population, are NaN where none is chosen.
    """
    count = chosen.sum(dim=1)
    mean = scores.masked_fill(~chosen, 0).sum(dim=1) / count
    squares = (scores - mean[:, None]).masked_fill_(~chosen, 0).square_()
    return torch.stack([mean, squares.sum(dim=1) / count, count.to(scores.dtype)], dim=1)


def pooled(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance `[]` of all anchors' scores together, from their `moments` `[N, 3]`.

    Var = sum_i n_i (var_i + (mean_i - mean)^2) / sum_i n_i: no large numbers cancel. NaN without a score.
    """
    means, variances, counts = values.unbind(dim=1)
    some, total = counts > 0, counts.sum()
    mean = torch.where(some, means * counts, 0).sum() / total
    return mean, torch.where(some, (variances + (means - mean).square()) * counts, 0).sum() / total


def group_means(name: str, values: Tensor, labels: Tensor, groups: Mapping[str, Tensor]) -> Rows:
    """Return `NAME_GROUP`, the mean `[]` of the values `[N]` whose classes `labels` `[N]` are in each group.

    NaN for a group without any; negative labels are in no group, which is given as classes `[C]`, bool.
    """
    found = {}
    for group, members in groups.items():
        inside = members[labels.clamp(min=0)] & (labels >= 0)
        found[f"{name}_{group}"] = torch.where(inside, values, 0).sum() / inside.sum()
    return found


@torch.no_grad()
def center_figures(weight: Tensor, groups: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Norms of the centers `[C, D_f]` by group, and the mean cosine between two of them.

    The sum of u_a . u_b over all pairs is |sum_a u_a|^2, C of them of a center with itself: it takes O(C D).
    -1 / (C - 1) is the least there can be: a regular simplex.
    """
    weight = to_float32(weight)
    classes = torch.arange(len(weight), device=weight.device)
    found = group_means("center_norm", weight.norm(dim=1), classes, groups)
    if len(weight) > 1:
        unit = nn.functional.normalize(weight, dim=1)
        own = unit.square().sum()  # a center of zeros has no direction: it counts as at right angles to all
        found["center_cosine"] = (unit.sum(dim=0).square().sum() - own) / (len(unit) * (len(unit) - 1))
    return found


def _short(value: float) -> float:
    """Keep six digits: thousands of classes are written at every checkpoint."""
    return float(f"{value:.6g}")
