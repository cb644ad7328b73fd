"""Diagnostics of a training, computed every n steps from tensors that the forward pass has anyway.

Nothing here changes the training, draws a random number or makes a step wait for the device. The set of
figures never depends on values: what a batch cannot show (say, without two images of one class) is NaN.
Scores, geometry and probabilities use the first rows of the batch; gradients use all rows, summed by class.
Entries of `Output.observed` that are read, all optional:

- `q`, `k`: unit rows of the two views `[B, D]`, before FT; `scored`: False where no scores are computed.
- `queue`, `queue_labels`, `valid`: the keys that q is contrasted with `[K, D]`, their classes and which slots
  are filled `[K]`; without a queue the keys are the second views of the batch.
- `classes`: classes of the rows of q `[B]`, comparable to the queue's; without them all keys are negatives.
- the same names with `_ft`: after the feature transformation.
- `tau` and `center_logits` `[B, C]`, as they enter the supervised losses.

Sources: by class, Cui et al. 2021 (PaCo), https://arxiv.org/abs/2107.12028, figure 2; scores, Zhu et al. 2021
(FT), https://arxiv.org/abs/2108.02982, section 3; alignment and uniformity, Wang and Isola 2020,
https://arxiv.org/abs/2005.10242; tolerance, Wang and Liu 2021, https://arxiv.org/abs/2012.09740.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from zoo import functional
from zoo.data import Batch
from zoo.functional.checks import to_float32
from zoo.modules.ranks import Ranks
from zoo.objectives import Objective, Output
from zoo.objectives.paco import GPaCo, PaCo
from zoo.objectives.sup_con import SupCon

ROWS = 256  # first images of a batch, for scores, pairs and probabilities
SCORED_KEYS = 4096  # at least, evenly spaced: all 65,536 would take a third of the loss's own time

Figures = dict[str, Tensor]
PER_IMAGE = ("q", "k", "q_ft", "k_ft", "classes", "center_logits")  # one row per image


class Observation:
    """Figures of single steps over all ranks, and per-class sums since the last row.

    Every `every`-th step is observed (None: no step), and in any case the last of `steps`.
    """

    def __init__(self, objective: Objective, every: int | None, ranks: Ranks, steps: int) -> None:
        self._objective, self._every, self._ranks, self._last = objective, every, ranks, steps
        counts = objective.class_counts
        members = {name: of & (counts > 0) for name, of in functional.frequency_groups(counts).items()}
        self._groups = {name: of for name, of in members.items() if bool(of.any())}
        self._features: Tensor | None = None
        self._has_features = self._has_centers = False
        # rows: images, gradient norms of the batch's summed loss, of its mean loss, of the centers; the last
        # column is for images without a known class
        self._sums = torch.zeros(4, len(counts) + 1, dtype=torch.float64, device=counts.device)
        self._looks = 0

    def due(self, step: int) -> bool:
        """Whether step number `step` (from 0) is observed."""
        return self._every is not None and ((step + 1) % self._every == 0 or step + 1 == self._last)

    @contextmanager
    def watch(self, step: int) -> Iterator[bool]:
        """Yield whether the step is observed; if so, the gradient of the encoder's features is kept."""
        if not self.due(step):
            yield False
            return

        def keep(_encoder: nn.Module, _images: Any, features: Tensor) -> Tensor | None:
            if self._features is not None or not torch.is_grad_enabled():
                return None  # the first call with gradients encodes the views that are trained on
            frozen = not features.requires_grad
            self._features = features.detach().requires_grad_() if frozen else features
            self._features.retain_grad()
            return self._features * 1 if frozen else None  # what the objective may change in place

        self._features = None
        hook = self._objective.encoder.register_forward_hook(keep)
        try:
            yield True
        finally:
            hook.remove()

    @torch.no_grad()
    def figures(self, batch: Batch, output: Output, parameters: Sequence[Tensor]) -> Figures:
        """Return this step's figures, the same on every rank; called after backward, before clipping.

        An image's gradient is that of the batch's summed loss at all its views in the encoder's first call.
        """
        count, sums = len(batch.labels), torch.zeros_like(self._sums)
        values = [torch.ones_like(batch.labels, dtype=sums.dtype)]
        gradient = None if self._features is None else self._features.grad
        if gradient is not None and len(gradient) % count == 0 and not self._objective.mixes_images:
            self._has_features = True  # rows: all images of one view, then of the next
            views = to_float32(gradient).reshape(-1, count, *gradient.shape[1:]).transpose(0, 1)
            values.append(views.flatten(start_dim=1).norm(dim=1).to(sums.dtype))
        self._features = None
        classes = torch.where(batch.labels >= 0, batch.labels, sums.shape[1] - 1)
        sums[: len(values)].index_add_(1, classes, torch.stack(values))
        images, gradients = self._ranks.all_reduce(sums[:2]).unbind()
        gradients = gradients / self._ranks.size
        total = count * self._ranks.size
        sums = torch.stack([images, gradients * total, gradients, self._center_gradients()])
        self._sums += sums
        self._looks += 1
        found = {"gradient_norm": nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])}
        for name, members in self._groups.items() if self._has_features else ():
            images, gradients = (sums[:2, :-1] * members).sum(dim=1).unbind()
            found[f"feature_gradient_{name}"] = (gradients / images).float()
        if (centers := self._objective.centers()) is not None:
            found |= center_figures(centers.weight, self._groups)
        # rows of all ranks, so that figures equal those of one rank with the whole batch
        observed = output.observed or {}
        labels = self._ranks.gather(batch.labels)
        observed |= {name: self._ranks.gather(observed[name]) for name in observed if name in PER_IMAGE}
        return found | batch_figures(self._objective, labels, observed, self._groups)

    def _center_gradients(self) -> Tensor:
        """Return the norm of the gradient of each class's center `[C + 1]`; zeros where there is none."""
        classifier = getattr(self._objective, "classifier", None)
        weight, norms = getattr(classifier, "weight", None), torch.zeros_like(self._sums[3])
        if weight is not None and weight.grad is not None:  # one row per class `[C, ...]`
            self._has_centers = True
            norms[:-1] = to_float32(weight.grad).flatten(start_dim=1).norm(dim=1)
        return norms

    def class_row(self, facts: Mapping[str, float]) -> dict[str, Any] | None:
        """Return the observations since the last row, see `RunFolder.class_rows`; waits for the device."""
        looks = self._looks
        images, gradients, contributions, centers = self._sums[:, :-1].tolist()
        self.reset()
        if looks == 0 or not (self._has_features or self._has_centers):
            return None
        means = [_short(g / n) if n else None for g, n in zip(gradients, images, strict=True)]
        return {
            **facts,
            "looks": looks,
            "images": [int(n) for n in images],
            "feature_gradient": means if self._has_features else None,
            "class_gradient": [_short(x / looks) for x in contributions] if self._has_features else None,
            "center_gradient": [_short(x / looks) for x in centers] if self._has_centers else None,
        }

    def reset(self) -> None:
        """Reset the sums to zero."""
        self._sums.zero_()
        self._looks = 0


@torch.no_grad()
def batch_figures(
    objective: Objective, labels: Tensor, observed: Mapping[str, Any], groups: Mapping[str, Tensor]
) -> Figures:
    """Return the figures of a batch's labels `[B]` and `observed`; groups of classes are `[C]`, bool."""
    found, q, k = Figures(), observed.get("q"), observed.get("k")
    if q is not None and k is not None:
        found["alignment"] = functional.alignment(q[:ROWS], k[:ROWS])
        found["uniformity"] = functional.uniformity(q[:ROWS])
        found["tolerance"] = functional.tolerance(q[:ROWS], labels[:ROWS])
        found |= _scores(observed, "") if observed.get("scored", True) else {}
    if "q_ft" in observed:
        found |= _scores(observed, "_ft")
    if isinstance(objective, PaCo | GPaCo | SupCon):
        for name, values in _probabilities(objective, observed).items():
            found[name] = values.nanmean()  # NaN: the image has no such value
            if name.startswith("p_sup"):
                found |= group_means(name, values, labels[:ROWS], groups)
    return found


def _scores(observed: Mapping[str, Any], ft: str) -> Figures:
    """Mean and variance of scores: two views of an image, keys of other classes, keys of its own class."""
    q, k = to_float32(observed[f"q{ft}"][:ROWS]), to_float32(observed[f"k{ft}"])
    own = observed["classes"][:ROWS, None] if "classes" in observed else None
    queue = observed.get(f"queue{ft}")
    if queue is not None:
        chosen = slice(None, None, max(len(queue) // SCORED_KEYS, 1))
        keys, classes = to_float32(queue[chosen]), observed[f"queue_labels{ft}"][chosen]
        there = observed[f"valid{ft}"][chosen] if own is None else classes >= 0
    else:
        keys, classes = k, observed.get("classes")
        there = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).fill_diagonal_(False)
    scores, pairs = q @ keys.T, (q * k[:ROWS]).sum(dim=1)
    negative = there.expand_as(scores) if own is None else (own != classes) & there
    kinds = {"positive": (pairs, torch.ones_like(pairs, dtype=torch.bool)), "negative": (scores, negative)}
    if own is not None and queue is not None:  # the queue has positives too
        kinds["same_class"] = (scores, (own == classes) & there)
    found = {}
    for name, given in kinds.items():
        found[f"{name}_score{ft}"], found[f"{name}_variance{ft}"] = moments(*given)
    return found


def moments(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population variance `[]` of the values that are `chosen` (bool); NaN if none is."""
    count = chosen.sum()
    mean = values.masked_fill(~chosen, 0).sum() / count
    return mean, (values - mean).masked_fill_(~chosen, 0).square_().sum() / count


def _probabilities(objective: PaCo | GPaCo | SupCon, observed: Mapping[str, Any]) -> Figures:
    """Softmax probability of each anchor's positives, and the same at the minimum of the loss."""
    given = {name: observed.get(f"{name}_ft", observed[name]) for name in ("q", "k", "queue", "queue_labels")}
    given |= {"labels": observed["classes"], "tau": observed["tau"], "anchors": ROWS}
    # SupCon is PaCo without centers: their weight beta among the positives is 0
    centers, weights = None, {"alpha": 1.0, "beta": 0.0, "gamma": 1.0, "label_smoothing": 0.0}
    if not isinstance(objective, SupCon):
        weights = {name: getattr(objective.config, name) for name in weights}
        centers = (observed["center_logits"] + objective.log_prior) / objective.config.center_tau
    found = functional.contrast_probabilities(**given, centers=centers, gamma=weights["gamma"])
    sides = {"": found}
    if weights["gamma"] > 0:  # the loss has no minimum without samples in the denominator
        sides["_optimum"] = functional.paco_optimum(found.positives, **weights)
    rows = {}
    for suffix, side in sides.items():
        # SupCon's anchors without positives have no finite optimum
        rows[f"pair_probability{suffix}"] = side.pair.masked_fill(side.pair.isinf(), torch.nan)
        if centers is not None:
            rows |= {f"p_sup{suffix}": side.p_sup, f"center_probability{suffix}": side.center}
    return rows


def group_means(name: str, values: Tensor, labels: Tensor, groups: Mapping[str, Tensor]) -> Figures:
    """Return `NAME_GROUP`, the mean `[]` of values `[N]` whose `labels` `[N]` are in each group, or NaN."""
    inside = {group: members[labels.clamp(min=0)] & (labels >= 0) for group, members in groups.items()}
    return {f"{name}_{group}": torch.where(of, values, 0).sum() / of.sum() for group, of in inside.items()}


@torch.no_grad()
def center_figures(weight: Tensor, groups: Mapping[str, Tensor]) -> Figures:
    """Norms of the centers `[C, D_f]` by group, and the mean cosine of two centers, at least -1 / (C - 1).

    In O(C D): the sum of u_a . u_b over all pairs is |sum_a u_a|^2, with C pairs of a center with itself.
    """
    weight = to_float32(weight)
    classes = torch.arange(len(weight), device=weight.device)
    found = group_means("center_norm", weight.norm(dim=1), classes, groups)
    if len(weight) > 1:
        unit = nn.functional.normalize(weight, dim=1)
        own = unit.square().sum()  # a zero center has no direction and counts as orthogonal to all
        found["center_cosine"] = (unit.sum(dim=0).square().sum() - own) / (len(unit) * (len(unit) - 1))
    return found


def _short(value: float) -> float:
    return float(f"{value:.6g}")  # thousands of classes are written at every checkpoint
