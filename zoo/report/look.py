"""What an encoder makes of a sample of images: features, scores of pairs, accuracies, neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo import backbones, functional
from zoo.data import EvalView, ImageDataset, TrainLoader, ViewsConfig, eval_images
from zoo.data.config import data_words
from zoo.data.labels import require_same_classes
from zoo.errors import DataError
from zoo.evaluation.encode import BATCH, Features, extract
from zoo.evaluation.probe_data import ProbeData
from zoo.functional.knn import knn_predict
from zoo.modules.centers import Centers
from zoo.seeding import derive_seed

SMALLEST = 4
"""Images that a sample needs: fewer have no pairs to speak of."""
GALLERY = 10
"""Training images that are encoded, for one of the sample."""
KNN = {"k": 5, "tau": 0.07}
"""What classifies without centers: few neighbours, since a rare class has few images."""

_PAIRED = 4096  # images at most whose pairs enter uniformity and tolerance: N^2 numbers are formed
_ANCHORS = 256  # images whose scores with all others are kept
_RAW = 32  # pixels of the side at most of an image as raw pixels
_QUERIES, _SHOWN = 4, 4  # query images, and neighbours shown of each

Views = tuple[ViewsConfig, int | None]
"""How training views are made: the recipe's `views` and `data.image_size`."""


class Neighbours(NamedTuple):
    """One query image of the test split and what is most similar to it.

    Attributes:
        image: the query `[3, h, w]`, uint8.
        label: its class.
        nearest: training images `[k, 3, h, w]`, most similar first, their labels and cosines `[k]`.
        hardest: the same of test images of another class.
    """

    image: Tensor
    label: int
    nearest: tuple[Tensor, Tensor, Tensor]
    hardest: tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Look:
    """What was seen.

    Attributes:
        data: what the images are of, in words.
        total: test images there are; the sample has N of them.
        seed: of the sample, and of the two views.
        index: which test images `[N]`, in random order.
        class_names: of the C classes of these images.
        class_counts: images of each in the training split `[C]`, int64.
        features: as the encoder gives them `[N, D]`, under the evaluation view.
        labels: `[N]`.
        scores: cosines of A anchors, the first of the sample, with all of it `[A, N]`.
        positive_scores: cosines of two training views of the same image `[N]`; None for a training without.
        uniformity: log E exp(-2 |x - y|^2) over pairs of the sample.
        tolerance: mean cosine of pairs of one class; NaN where no class has two images.
        per_class: accuracy of each class in percent `[C]`; NaN for one without a test image in the sample.
        accuracy: over all images of the sample, in percent.
        classifier: what classified, in words.
        neighbours: of some query images.
        landmarks: uniformity and tolerance of other encoders of the same images, by name.
    """

    data: str
    total: int
    seed: int
    index: Tensor
    class_names: Sequence[str]
    class_counts: Tensor
    features: Tensor
    labels: Tensor
    scores: Tensor
    positive_scores: Tensor | None
    uniformity: float
    tolerance: float
    per_class: Tensor
    accuracy: float
    classifier: str
    neighbours: Sequence[Neighbours]
    landmarks: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def apart(self) -> Tensor:
        """Whether an anchor and an image are of different classes `[A, N]`."""
        return self.labels[: len(self.scores), None] != self.labels

    def pairs(self) -> dict[str, Tensor]:
        """Return cosines of two views of an image, of images of one class and of others, by these names."""
        same = (~self.apart).fill_diagonal_(False)
        found = {"same_class": self.scores[same], "other_class": self.scores[self.apart]}
        if self.positive_scores is not None:
            found = {"positive": self.positive_scores, **found}
        return {name: scores for name, scores in found.items() if len(scores) > 1}

    def numbers(self) -> dict[str, float]:
        """Return the measures by name; `zoo.report.subject.summary` says which they are."""
        found = {"uniformity": self.uniformity, "tolerance": self.tolerance, "accuracy": self.accuracy}
        if self.positive_scores is not None:  # of unit rows |q - k|^2 = 2 - 2 q.k
            found["alignment"] = float(2 - 2 * self.positive_scores.double().mean())
        for name, scores in self.pairs().items():
            found |= {f"{name}_score": float(scores.mean()), f"{name}_deviation": float(scores.std())}
        return found


def look(
    encoder: nn.Module,
    train_set: ImageDataset,
    test_set: ImageDataset,
    *,
    reading: Mapping[str, Any],
    views: Views | None = None,
    centers: Centers | None = None,
    sample: int = 2000,
    seed: int = 0,
    landmarks: Mapping[str, nn.Module] | None = None,
) -> Look:
    """Look at an encoder through a seeded sample of the test images.

    Test labels are used for measures and figures alone. The encoder is in evaluation mode throughout, and
    scores are cosines of its pooled features: a release has no projection head.

    Args:
        encoder: headless, images `[B, 3, S, S]` to features `[B, D]`.
        train_set: where neighbours come from; of more than ten times `sample` images, a seeded part.
        test_set: what the sample is drawn from.
        reading: how images become features, see `zoo.evaluation.probe_data.Reading`.
        views: for two training views of each image; None where the training has none.
        centers: in the space of the features; without (or of another number of classes), kNN classifies.
        sample: test images to look at; all of them when there are fewer.
        seed: of the sample, the views' draws and the query images.
        landmarks: other encoders of the same images, by name; see `landmarks_of`.

    Raises:
        DataError: for an empty split, splits with other classes, images that cannot be read, or features
            that are not finite.
    """
    if len(test_set) < SMALLEST or not len(train_set):
        found = f"{len(train_set)} training and {len(test_set)} test images"
        raise DataError(f"look: found {found}, expected at least 1 and {SMALLEST}")
    require_same_classes(train_set.class_names, test_set.class_names, "look: ")
    chosen = _choose(len(test_set), sample, derive_seed("look", seed))
    tested = test_set.subset(chosen)
    gallery = train_set.subset(
        np.sort(_choose(len(train_set), GALLERY * sample, derive_seed("gallery", seed)))
    )
    probe = ProbeData(encoder, gallery, lambda _: torch.empty(0), **reading)
    seen, known = probe.extract(encoder, tested, "test"), probe.extract(encoder, gallery, "train")
    if not bool(seen.features.isfinite().all()):
        raise DataError("look: the features hold NaN or infinity; has the encoder diverged?")
    unit, labels, classes = F.normalize(seen.features, dim=1), seen.labels, test_set.num_classes
    if centers is not None and len(centers.weight) == classes:
        predictions, classifier = centers.logits(seen.features).argmax(dim=1).cpu(), "the learned centers"
    else:
        votes = knn_predict(known.features, known.labels, seen.features, num_classes=classes, **KNN)  # type: ignore[arg-type]
        predictions, classifier = votes.predictions, f"kNN among {len(known.labels):,} training images"
    right = torch.bincount(labels[predictions == labels], minlength=classes)
    others = {}
    for name, other in (landmarks or {}).items():
        first = tested.subset(np.arange(len(unit[:_PAIRED])))
        others[name] = _measures(F.normalize(probe.extract(other, first, "test").features, dim=1), labels)
    uniformity, tolerance = _measures(unit, labels)
    return Look(
        data=data_words({"name": "images without a name", **test_set.settings}),
        total=len(test_set),
        seed=seed,
        index=torch.from_numpy(chosen),
        class_names=test_set.class_names,
        class_counts=torch.from_numpy(train_set.class_counts),
        features=seen.features,
        labels=labels,
        scores=unit[:_ANCHORS] @ unit.T,
        positive_scores=None if views is None else _positive_scores(encoder, tested, views, seed, reading),
        uniformity=uniformity,
        tolerance=tolerance,
        per_class=100 * right / torch.bincount(labels, minlength=classes).double(),  # 0 / 0 is NaN
        accuracy=100 * float((predictions == labels).double().mean()),
        classifier=classifier,
        neighbours=_neighbours(tested, gallery, unit, known, train_set.class_counts, reading["view"]),
        landmarks=others,
    )


class RawPixels(nn.Module):
    """The image itself as its features `[B, 3 s s]`, averaged to at most 32 x 32 pixels."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the pixels of normalised images `[B, 3, S, S]`."""
        if max(images.shape[-2:]) > _RAW:
            images = F.adaptive_avg_pool2d(images, _RAW)
        return images.flatten(1)


def landmarks_of(arch: str, model_args: Mapping[str, Any], *, seed: int) -> dict[str, nn.Module]:
    """Return what a trained encoder is compared with: raw pixels, and its architecture with random weights.

    The random weights are those that a training from scratch with `seed` begins with.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", seed))
        return {"raw pixels": RawPixels(), "random encoder": backbones.create(arch, **model_args)}


def _choose(count: int, at_most: int, seed: int) -> NDArray[np.int64]:
    """Return so many of `count` positions at most, in random order."""
    order: NDArray[np.int64] = np.random.default_rng(seed).permutation(count)[:at_most].astype(np.int64)
    return order


def _measures(unit: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return uniformity and tolerance of the first unit rows."""
    unit, labels = unit[:_PAIRED], labels[:_PAIRED]
    return float(functional.uniformity(unit)), float(functional.tolerance(unit, labels))


def _positive_scores(
    encoder: nn.Module, tested: ImageDataset, views: Views, seed: int, reading: Mapping[str, Any]
) -> Tensor | None:
    """Return cosines of two training views of each image `[N]`, in order."""
    config, image_size = views
    if len(config.train) < 2:
        return None
    try:
        loader = TrainLoader(
            tested,
            config.model_copy(update={"cache": False}),  # a sample is no data set to keep
            mean=reading["mean"],
            std=reading["std"],
            batch_size=BATCH,
            drop_last=False,
            seed=derive_seed("look views", seed),
            device=reading["device"],
            image_size=image_size,
        )
        batches = _two_views(loader, len(tested))
        both = extract(encoder, batches, device=reading["device"])
    except DataError:  # images of several sizes, say, or too small for an operation
        return None
    first, second = F.normalize(both.features[both.labels.argsort()], dim=1).chunk(2)
    return (first * second).sum(dim=1)


def _two_views(loader: TrainLoader, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images with their position in the sample, that of second views raised by `count`.

    Of three views the first is for a classifier: the last two are what training contrasts.
    """
    for batch in loader.stream(0, loader.steps_per_epoch):
        yield batch.views[-2], batch.index
        yield batch.views[-1], batch.index + count


def _neighbours(
    tested: ImageDataset,
    gallery: ImageDataset,
    unit: Tensor,
    known: Features,
    class_counts: NDArray[np.int64],
    view: EvalView,
) -> list[Neighbours]:
    """Return the first image of up to four classes, from the most to the least frequent, with neighbours."""
    labels = torch.from_numpy(tested.labels.copy())
    if len(known.labels) < len(gallery):  # others could not be read
        gallery = gallery.subset(_readable(gallery))
    bank = F.normalize(known.features, dim=1)
    present = np.unique(tested.labels)
    ordered = present[np.argsort(-class_counts[present], kind="stable")]
    places = np.unique(np.linspace(0, len(ordered) - 1, _QUERIES).round().astype(int))
    found = []
    for label in ordered[places]:
        query = int(np.flatnonzero(tested.labels == label)[0])
        near = (bank @ unit[query]).topk(min(_SHOWN, len(bank)))
        other = torch.where(labels == label, -torch.inf, unit @ unit[query])
        hard = other.topk(min(_SHOWN, int((labels != label).sum())))
        nearest = _pixels(gallery, near.indices, view), known.labels[near.indices], near.values
        hardest = _pixels(tested, hard.indices, view), labels[hard.indices], hard.values
        found.append(
            Neighbours(_pixels(tested, torch.tensor([query]), view)[0], int(label), nearest, hardest)
        )
    return found


def _readable(dataset: ImageDataset) -> NDArray[np.int64]:
    def reads(index: int) -> bool:
        try:
            dataset.image(index)
        except DataError:
            return False
        return True

    return np.array([index for index in range(len(dataset)) if reads(index)], dtype=np.int64)


def _pixels(dataset: ImageDataset, indices: Tensor, view: EvalView) -> Tensor:
    """Return images under the evaluation view `[M, 3, S, S]`, uint8."""
    if not len(indices):
        return torch.empty(0, 3, 1, 1, dtype=torch.uint8)
    batches = eval_images(
        dataset.subset(indices.numpy()),
        view,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        device="cpu",
        batch_size=len(indices),
    )
    return torch.cat([(images * 255).round().to(torch.uint8) for images, _ in batches])
