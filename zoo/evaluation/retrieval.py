"""Retrieval: whether the images most similar to an image are of its class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.config import is_number
from zoo.errors import DataError, ZooError
from zoo.functional.checks import check_features, check_labels

_ROWS = 1 << 16  # of the gallery that are looked at together
_BLOCK = 1 << 24  # similarities at a time: 64 MiB, and as much again while they are sorted


class Pairs(NamedTuple):
    """Queries and rows of the gallery that are alike, most alike first.

    Attributes:
        query: rows of the queries `[P]`, int64.
        other: rows of the gallery `[P]`, int64.
        similarity: their cosines `[P]`.
    """

    query: Tensor
    other: Tensor
    similarity: Tensor


class Retrieval:
    """Features in which queries look for their like, before anybody says which those are.

    Similarity is the cosine. Exact; memory beside the features: so many rows of similarities to the whole
    gallery as fit into a block of 64 MiB, and no copy of the gallery.

    Args:
        queries: `[N, D]`.
        gallery: `[M, D]`; None: the queries themselves, each without itself.

    Raises:
        DataError: for features that are not finite, of unequal dimension, or a gallery without images.
    """

    def __init__(self, queries: Tensor, gallery: Tensor | None = None) -> None:
        check_features(queries, "retrieval: query features")
        self.alone = gallery is None
        if gallery is None:
            gallery = queries
        else:
            check_features(gallery, "retrieval: gallery features", dim=queries.shape[1])
        if self.alone and len(queries) < 2:
            raise DataError("retrieval: found 1 image, expected at least 2, as none looks for itself")
        self.queries, self.gallery = queries, gallery
        norms = [gallery[i : i + _ROWS].float().norm(dim=1) for i in range(0, len(gallery), _ROWS)]
        self._norms = torch.cat(norms).clamp(min=1e-12)

    def pairs(self, above: float) -> Pairs:
        """Return every pair with at least that cosine: near duplicates, say.

        Without a gallery each two of the queries are one pair, the earlier row first. Memory grows with
        the number of pairs: begin with a high threshold.

        Args:
            above: the least cosine, from -1 to 1. Which one means "the same image" depends on the encoder:
                look at the pairs around it.

        Raises:
            ZooError: for another threshold.
        """
        if not is_number(above) or not -1 <= above <= 1:
            raise ZooError(f"retrieval: above: found {above!r}, expected a cosine from -1 to 1")
        columns = torch.arange(len(self.gallery), device=self.gallery.device)
        found = []
        for part in torch.split(torch.arange(len(self.queries)), self._rows()):
            similarity = self._similarity(part)
            alike = similarity >= above
            if self.alone:
                alike &= columns > part.to(columns.device)[:, None]
            place, other = alike.nonzero(as_tuple=True)
            found.append((part[place.cpu()], other.cpu(), similarity[place, other].cpu()))
        query, other, similarity = (torch.cat(column) for column in zip(*found, strict=True))
        order = similarity.argsort(descending=True, stable=True)
        return Pairs(query[order], other[order], similarity[order])

    def metrics(
        self, labels: Tensor, gallery_labels: Tensor | None, num_classes: int, k: Sequence[int]
    ) -> dict[str, float | int]:
        """Return recall@k and mean average precision in percent.

        Recall@k: the share of queries with an image of their class among the k nearest (Song et al. 2016,
        arXiv 1511.06452, section 6). Of equally similar images those of other classes count as nearer: an
        encoder that maps all images to one point finds nothing.
        Average precision: over the relevant images r, the mean of the share of relevant ones among all that
        are at least as similar as r (scikit-learn's `average_precision_score`).

        A query without an image of its class in the gallery can find none: it is left out of both.

        Args:
            labels: classes of the queries `[N]`.
            gallery_labels: of the gallery `[M]`; None where the gallery is the queries.
            num_classes: C.
            k: of the recalls.

        Returns:
            `recall_at_K` for each k, `map`, and how many `queries` and `gallery_images` that is over.

        Raises:
            DataError: for labels outside `[0, C)`, or if no query has an image of its class in the gallery.
            ZooError: for a k below 1.
        """
        if not k or min(k) < 1:
            raise ZooError(f"retrieval: found k = {list(k)}, expected one or more numbers from 1")
        check_labels(labels, "retrieval: query labels", count=len(self.queries), num_classes=num_classes)
        others = labels if gallery_labels is None else gallery_labels
        check_labels(others, "retrieval: gallery labels", count=len(self.gallery), num_classes=num_classes)
        first, precision = [], []
        for label in torch.unique(labels.cpu()).tolist():
            relevant = (others.cpu() == label).nonzero().flatten()
            if len(relevant) <= self.alone:
                continue
            queries = (labels.cpu() == label).nonzero().flatten()
            for part in torch.split(queries, self._rows()):
                rank, average = self._ranked(part, relevant)
                first.append(rank)
                precision.append(average)
        if not first:
            raise DataError(
                "retrieval: no query has another image of its class in the gallery, expected at least one"
            )
        ranks = torch.cat(first)
        return {
            **{f"recall_at_{n}": 100.0 * float((ranks <= n).double().mean()) for n in sorted(set(k))},
            "map": 100.0 * float(torch.cat(precision).mean()),
            "queries": len(ranks),
            "gallery_images": len(self.gallery) - self.alone,
        }

    def _ranked(self, queries: Tensor, relevant: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rank of the nearest relevant image, from 1, and the average precision, both `[B]`.

        Args:
            queries: rows of queries of one class `[B]`.
            relevant: rows of the gallery of that class `[R]`, ascending, the queries among them if alone.
        """
        similarity = self._similarity(queries)
        own = similarity[:, relevant.to(similarity.device)]
        ordered, own = _sorted(similarity), _sorted(own)  # a query itself, at minus infinity, comes first
        own = own[:, int(self.alone) :].contiguous()
        # how many are at least as similar as each relevant image, relevant or not
        above = ordered.shape[1] - torch.searchsorted(ordered, own, side="left")
        above_own = own.shape[1] - torch.searchsorted(own, own, side="left")
        rank = 1 + (above - above_own)[:, -1]
        return rank.cpu(), (above_own.double() / above).mean(dim=1).cpu()

    def _similarity(self, rows: Tensor) -> Tensor:
        """Return the cosines `[B, M]` of queries; that of a query with itself is minus infinity."""
        device = self.gallery.device
        queries = F.normalize(self.queries[rows.to(self.queries.device)].to(device, torch.float32), dim=1)
        similarity = (queries @ self.gallery.float().T).div_(self._norms)
        if self.alone:
            similarity[torch.arange(len(rows), device=device), rows.to(device)] = -torch.inf
        return similarity

    def _rows(self) -> int:
        return max(1, _BLOCK // len(self.gallery))


def _sorted(values: Tensor) -> Tensor:
    """Sort `[B, M]` along its rows, ascending; NumPy's sort takes a tenth of torch's time on a CPU."""
    if values.device.type != "cpu":
        return values.sort(dim=1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=1))
