"""An encoder's view of a sample of test images: features, pair scores, nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from zoo import functional
from zoo.data import ImageDataset, TrainLoader, ViewsConfig, eval_images
from zoo.data.batches import derive_seed
from zoo.data.dataset import data_words, require_same_classes
from zoo.errors import DataError
from zoo.evaluation.encode import Encoder, encode_images, extract
from zoo.functional.checks import check_features

SMALLEST = 4  # minimal number of images in a sample
_PAIRED = 4096  # maximal number of images for uniformity and tolerance, which need all N^2 pairs
_ANCHORS = 256  # images whose scores with all others are computed
_QUERIES, _SHOWN = 4, 4  # query images, and neighbours shown for each
Shown = tuple[Tensor, Tensor, Tensor]  # images `[k, 3, h, w]`, most similar first, labels, cosines `[k]`


class Neighbours(NamedTuple):
    """A query image `[3, h, w]`, uint8, its class, similar training images, test images of other classes."""

    image: Tensor
    label: int
    nearest: Shown
    hardest: Shown


@dataclass(eq=False)
class Sample:
    """N encoded test images: their features `[N, D]` and classes `[N]`.

    `class_counts` are the training images of each class `[C]`, `images` describes the selection, and
    `positive_scores` are the cosines of each image's two training views `[N]`.
    """

    features: Tensor
    labels: Tensor
    class_names: Sequence[str]
    class_counts: Tensor
    images: str = ""
    positive_scores: Tensor | None = None
    neighbours: Sequence[Neighbours] = ()

    @cached_property
    def scores(self) -> Tensor:
        """Cosines of the first A images, the anchors, with the whole sample `[A, N]`."""
        unit = F.normalize(self.features, dim=1)
        return unit[:_ANCHORS] @ unit.T

    @property
    def apart(self) -> Tensor:
        """Whether an anchor and an image are of different classes `[A, N]`."""
        return self.labels[: len(self.scores), None] != self.labels

    @cached_property
    def pairs(self) -> dict[str, Tensor]:
        """Cosines of two views of an image, of pairs in one class and in different ones; if two or more."""
        same = (~self.apart).fill_diagonal_(False)
        found = {"same_class": self.scores[same], "other_class": self.scores[self.apart]}
        if self.positive_scores is not None:
            found["positive"] = self.positive_scores
        return {name: scores for name, scores in found.items() if len(scores) > 1}

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Measures by name: `uniformity`, `tolerance`, `alignment`, means and deviations of `pairs`."""
        unit = F.normalize(self.features[:_PAIRED], dim=1)
        found = {"uniformity": float(functional.uniformity(unit))}
        found["tolerance"] = float(functional.tolerance(unit, self.labels[:_PAIRED]))
        if self.positive_scores is not None:  # for unit rows |q - k|^2 = 2 - 2 q.k
            found["alignment"] = float(2 - 2 * self.positive_scores.double().mean())
        for name, scores in self.pairs.items():
            found |= {f"{name}_score": float(scores.mean()), f"{name}_deviation": float(scores.std())}
        return found


def take_sample(
    encoder: Encoder,
    train_set: ImageDataset,
    test_set: ImageDataset,
    views: ViewsConfig | None,
    image_size: int | None,
    size: int,
) -> Sample:
    """Encode a fixed random sample of at most `size` test images and 10 `size` training images.

    Scores are cosines of pooled features, since a release has no projection head. `views` and `image_size`
    are the recipe's, for two training views of each image.

    Raises:
        DataError: for too few images, splits with different classes, unreadable images, non-finite features.
    """
    if len(test_set) < SMALLEST or not len(train_set):
        raise DataError(f"diagnose: found {len(train_set)} training images, {len(test_set)} to test on")
    require_same_classes(train_set.class_names, test_set.class_names, "diagnose: ")
    tested = test_set.subset(_draw(len(test_set), size, "look"))
    gallery = train_set.subset(np.sort(_draw(len(train_set), 10 * size, "gallery")))
    features, *_ = encode_images(tested, encoder, f"{encoder.name}: test images")
    bank, *_ = encode_images(gallery, encoder, f"{encoder.name}: training images")
    check_features(features, "diagnose: features")
    data = data_words({"name": "images without a name", **test_set.settings})
    return Sample(
        features=features,
        labels=torch.from_numpy(tested.labels.copy()),
        class_names=test_set.class_names,
        class_counts=torch.from_numpy(train_set.class_counts),
        images=f"{len(tested):,} of {len(test_set):,} test images of {data}",
        positive_scores=_positive_scores(encoder, tested, views, image_size),
        neighbours=_neighbours(tested, gallery, features, bank, encoder),
    )


def _draw(count: int, at_most: int, what: str) -> NDArray[np.int64]:
    """Draw at most `at_most` of `count` indices at random."""
    return np.random.default_rng(derive_seed(what, 0)).permutation(count)[:at_most].astype(np.int64)


def _positive_scores(
    encoder: Encoder, tested: ImageDataset, views: ViewsConfig | None, image_size: int | None
) -> Tensor | None:
    """Return the cosine of each image's last two training views `[N]`, which the objective contrasts."""
    if views is None or len(views.train) < 2:
        return None
    try:
        how: dict[str, Any] = {"mean": encoder.preprocess.mean, "std": encoder.preprocess.std}
        how |= {"batch_size": 256, "drop_last": False, "seed": derive_seed("look views", 0)}
        uncached = views.model_copy(update={"cache": False})  # do not cache a sample
        loader = TrainLoader(tested, uncached, device=encoder.device, image_size=image_size, **how)
        batches = (
            (view, batch.index + second * len(tested))  # the index in the sample serves as label
            for batch in loader.stream(0, loader.steps_per_epoch)
            for second, view in enumerate(batch.views[-2:])
        )
        both = extract(encoder.model, batches, device=encoder.device)
    except DataError:  # images of several sizes, say, or too small for an operation
        return None
    first, second = F.normalize(both.features[both.labels.argsort()], dim=1).chunk(2)
    return (first * second).sum(dim=1)


def _neighbours(
    tested: ImageDataset, gallery: ImageDataset, features: Tensor, bank: Tensor, encoder: Encoder
) -> list[Neighbours]:
    """Return one image each of up to four classes, from the most to the least frequent, with neighbours."""
    unit, bank, labels = F.normalize(features, dim=1), F.normalize(bank, dim=1), tested.labels
    present = np.unique(labels)
    ordered = present[np.argsort(-gallery.class_counts[present], kind="stable")]
    places = np.unique(np.linspace(0, len(ordered) - 1, _QUERIES).round().astype(int))

    def shown(dataset: ImageDataset, scores: Tensor, count: int) -> Shown:
        values, indices = scores.topk(min(_SHOWN, count))
        if not len(indices):
            return torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.empty(0), values
        chosen = dataset.subset(indices.numpy())
        plain = eval_images(chosen, encoder.view, [0.0] * 3, [1.0] * 3, batch_size=_SHOWN, device="cpu")
        images = torch.cat([(images * 255).round().to(torch.uint8) for images, _ in plain])
        return images, torch.from_numpy(chosen.labels.copy()), values

    found = []
    for label in ordered[places].tolist():
        query, same = int(np.flatnonzero(labels == label)[0]), torch.from_numpy(labels == label)
        image = shown(tested.subset([query]), torch.ones(1), 1)[0][0]
        others = torch.where(same, -torch.inf, unit @ unit[query])
        near = shown(gallery, bank @ unit[query], len(bank))
        found.append(Neighbours(image, label, near, shown(tested, others, int((~same).sum()))))
    return found
