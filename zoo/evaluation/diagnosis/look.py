"""What an encoder makes of a sample of images: features, scores of pairs, accuracies, neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from zoo import backbones, functional
from zoo.data import EvalView, ImageDataset, TrainLoader, ViewsConfig
from zoo.data.labels import require_same_classes
from zoo.data.words import data_words
from zoo.errors import DataError, ZooError
from zoo.evaluation.diagnosis.center_loss import CenterLoss
from zoo.evaluation.diagnosis.similar import Neighbours, find_neighbours
from zoo.evaluation.encoded import BATCH, ProbeData
from zoo.evaluation.features import Features, extract
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
_ROWS = 4096  # of logits at a time


class Landmark(NamedTuple):
    """Where a reference lies in the plane of uniformity and tolerance."""

    uniformity: float
    tolerance: float


@dataclass(frozen=True, eq=False)
class Look:
    """What was seen.

    Attributes:
        data: what the test images are of, in words.
        training_data: what the gallery's images are of, in words.
        total: test images there are; the sample has N of them.
        seed: of the sample, and of the two views.
        index: which test images `[N]`, in random order.
        class_names: of the C classes of these images.
        class_counts: images of each in the training split `[C]`, int64.
        features: unit rows `[N, D]` under the evaluation view.
        norms: of the features before `[N]`.
        labels: `[N]`.
        uniformity: log E exp(-2 |x - y|^2) over pairs of the sample.
        tolerance: mean cosine of pairs of one class; None where no class has two images.
        scores: cosines of A anchors, the first of the sample, with all of it `[A, N]`.
        positive_scores: cosines of two training views of the same image `[N]`; None: see `without_views`.
        alignment: E |q - k|^2 of these views.
        without_views: why there are no such views.
        per_class: accuracy of each class in percent `[C]`; NaN for one without a test image in the sample.
        accuracy: over all images of the sample, in percent.
        classifier: what classified, in words.
        gallery: training images that were encoded, of `gallery_total`.
        gallery_total: see above.
        gradient: norm of the gradient of `gradient_of` with respect to the features, at the released encoder
            and centers, mean over the gallery's images of each class `[C]`, NaN for a class without; None
            without centers, or without a loss in closed form.
        gradient_of: the loss that the centers were trained with; without `gradient`, why there is none.
        neighbours: of some query images.
        landmarks: by name, of those that were asked for.
    """

    data: str
    training_data: str
    total: int
    seed: int
    index: Tensor
    class_names: Sequence[str]
    class_counts: Tensor
    features: Tensor
    norms: Tensor
    labels: Tensor
    uniformity: float
    tolerance: float | None
    scores: Tensor
    positive_scores: Tensor | None
    alignment: float | None
    without_views: str | None
    per_class: Tensor
    accuracy: float
    classifier: str
    gallery: int
    gallery_total: int
    gradient: Tensor | None
    gradient_of: str
    neighbours: Sequence[Neighbours]
    landmarks: Mapping[str, Landmark] = field(default_factory=dict)

    @property
    def same_class(self) -> Tensor:
        """Cosines of the anchors with other images of their class."""
        return self.scores[self._alike().fill_diagonal_(False)]

    @property
    def other_class(self) -> Tensor:
        """Cosines of the anchors with images of other classes."""
        return self.scores[self.apart]

    @property
    def apart(self) -> Tensor:
        """Whether an anchor and an image are of different classes `[A, N]`."""
        return ~self._alike()

    def _alike(self) -> Tensor:
        return self.labels[: len(self.scores), None] == self.labels


def look(
    encoder: nn.Module,
    train_set: ImageDataset,
    test_set: ImageDataset,
    *,
    view: EvalView,
    mean: Sequence[float],
    std: Sequence[float],
    views: ViewsConfig | None = None,
    image_size: int | None = None,
    centers: Centers | None = None,
    center_loss: CenterLoss | str = "with what loss its centers were trained is not known",
    sample: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    workers: int = 0,
    max_bad_images: int = 0,
    cache: bool = False,
    landmarks: Mapping[str, nn.Module] | None = None,
) -> Look:
    """Look at an encoder through a seeded sample of the test images.

    Test labels are used for measures and figures alone. The encoder is in evaluation mode throughout, and
    scores are cosines of its pooled features: a release has no projection head.

    Args:
        encoder: headless, images `[B, 3, S, S]` to features `[B, D]`.
        train_set: where neighbours come from; of more than ten times `sample` images, a seeded part.
        test_set: what the sample is drawn from.
        view: the evaluation view.
        mean: of the channels, for values in 0..1.
        std: likewise.
        views: the recipe's, for two training views of each image; None where it has none.
        image_size: the recipe's `data.image_size`.
        centers: in the space of the features; without (or of another number of classes), kNN classifies.
        center_loss: what the centers were trained with, or why that cannot be computed here.
        sample: test images to look at; all of them when there are fewer.
        seed: of the sample, the views' draws and the query images.
        device: where to compute.
        workers: processes that decode.
        max_bad_images: of the training images, as in training.
        cache: take decoded images from the file where a training has kept them.
        landmarks: other encoders of the same images, by name; see `landmarks_of`.

    Raises:
        DataError: for an empty split, splits with other classes, images that cannot be read, or features
            that are not finite.
        ZooError: for `sample` below 4.
    """
    if sample < SMALLEST:
        raise ZooError(f"sample: found {sample}, expected {SMALLEST} or more")
    _check(train_set, test_set)
    chosen = _choose(len(test_set), sample, derive_seed("look", seed))
    tested = test_set.subset(chosen)
    shown = _choose(len(train_set), GALLERY * sample, derive_seed("gallery", seed))
    gallery = train_set.subset(np.sort(shown))
    reading: Any = {"view": view, "mean": mean, "std": std, "device": device, "workers": workers}
    reading |= {"max_bad_images": max_bad_images}
    probe = ProbeData(encoder, gallery, lambda _: torch.empty(0), **reading, cache=cache)
    seen = probe.extract(encoder, tested, "test")
    known = probe.extract(encoder, gallery, "train")
    norms = seen.features.norm(dim=1)
    if not bool(norms.isfinite().all()):
        raise DataError("look: the features hold NaN or infinity; has the encoder diverged?")
    features = F.normalize(seen.features, dim=1)
    paired = features[:_PAIRED], seen.labels[:_PAIRED]
    if centers is not None and len(centers.weight) != test_set.num_classes:
        centers = None
    predictions, classifier = _classify(seen, known, centers, test_set.num_classes)
    positives, without = _positive_scores(encoder, tested, views, mean, std, image_size, seed, device)
    others = {}
    for name, other in (landmarks or {}).items():
        unit = F.normalize(
            probe.extract(other, tested.subset(np.arange(len(paired[0]))), "test").features, dim=1
        )
        others[name] = Landmark(float(functional.uniformity(unit)), _tolerance(unit, paired[1]) or math.nan)
    loss = center_loss if centers is not None else "no centers"
    return Look(
        data=words_of(test_set),
        training_data=words_of(train_set),
        total=len(test_set),
        seed=seed,
        index=torch.from_numpy(chosen),
        class_names=test_set.class_names,
        class_counts=torch.from_numpy(train_set.class_counts),
        features=features,
        norms=norms,
        labels=seen.labels,
        uniformity=float(functional.uniformity(paired[0])),
        tolerance=_tolerance(*paired),
        scores=features[:_ANCHORS] @ features.T,
        positive_scores=positives,
        # of unit rows |q - k|^2 = 2 - 2 q.k
        alignment=None if positives is None else float(2 - 2 * positives.double().mean()),
        without_views=without,
        per_class=_recall(predictions, seen.labels, test_set.num_classes),
        accuracy=100 * float((predictions == seen.labels).double().mean()),
        classifier=classifier,
        gallery=len(known.labels),
        gallery_total=len(train_set),
        gradient=None if centers is None or isinstance(loss, str) else _gradient(known, centers, loss),
        gradient_of=loss if isinstance(loss, str) else loss.words,
        neighbours=find_neighbours(tested, gallery, features, known, train_set.class_counts, view),
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


def words_of(dataset: ImageDataset) -> str:
    """Name a data set in a few words, as `zoo.data.words.data_words` does."""
    facts = dataset.settings
    return data_words(facts) if facts.get("name") else "images without a name"


def _check(train_set: ImageDataset, test_set: ImageDataset) -> None:
    for split, dataset in (("training", train_set), ("test", test_set)):
        least = SMALLEST if split == "test" else 1
        if len(dataset) < least:
            found = f"{len(dataset)} images" if len(dataset) else "no image"
            raise DataError(f"look: the {split} split has {found}, expected {least} or more")
    require_same_classes(train_set.class_names, test_set.class_names, "look: ")


def _choose(count: int, at_most: int, seed: int) -> NDArray[np.int64]:
    """Return so many of `count` positions at most, in random order."""
    order: NDArray[np.int64] = np.random.default_rng(seed).permutation(count)[:at_most].astype(np.int64)
    return order


def _tolerance(unit: Tensor, labels: Tensor) -> float | None:
    value = float(functional.tolerance(unit, labels))
    return None if math.isnan(value) else value


def _classify(seen: Features, known: Features, centers: Centers | None, classes: int) -> tuple[Tensor, str]:
    if centers is not None:
        return centers.logits(seen.features).argmax(dim=1).cpu(), "the learned centers"
    found = knn_predict(known.features, known.labels, seen.features, num_classes=classes, **KNN)  # type: ignore[arg-type]
    k, tau = found.settings["k"], found.settings["tau"]
    return found.predictions, f"kNN (k = {k}, tau = {tau:g}) among {len(known.labels):,} training images"


def _recall(predictions: Tensor, labels: Tensor, classes: int) -> Tensor:
    total = torch.bincount(labels, minlength=classes).double()
    return 100 * torch.bincount(labels[predictions == labels], minlength=classes) / total  # 0 / 0 is NaN


def _gradient(known: Features, centers: Centers, loss: CenterLoss) -> Tensor:
    """Return the mean |W^T dL/dz| over the images of each class `[C]`, z = W x + b; NaN without any."""
    weight = centers.weight.float().cpu()
    sums = torch.zeros(len(weight), dtype=torch.float64)
    parts = (torch.split(each, _ROWS) for each in known)
    for features, labels in zip(*parts, strict=True):
        error = loss.error(centers.logits(features).float(), labels)
        sums.index_add_(0, labels, (error @ weight).norm(dim=1).double())
    return sums / torch.bincount(known.labels, minlength=len(weight))


def _positive_scores(
    encoder: nn.Module,
    tested: ImageDataset,
    views: ViewsConfig | None,
    mean: Sequence[float],
    std: Sequence[float],
    image_size: int | None,
    seed: int,
    device: torch.device | str,
) -> tuple[Tensor | None, str | None]:
    """Return cosines of two training views of each image `[N]`, in order, or why there are none."""
    if views is None:
        return None, "no recipe says how its training views were made"
    if len(views.train) < 2:
        return None, "its training takes one view of an image"
    try:
        loader = TrainLoader(
            tested,
            views.model_copy(update={"cache": False}),  # a sample is no data set to keep
            mean=mean,
            std=std,
            batch_size=BATCH,
            drop_last=False,
            seed=derive_seed("look views", seed),
            device=device,
            image_size=image_size,
        )
        both = extract(encoder, _two_views(loader, len(tested)), device=device, count=2 * len(tested))
    except DataError as error:  # images of several sizes, say, or too small for an operation
        return None, str(error)
    ordered = F.normalize(both.features[both.labels.argsort()], dim=1)
    first, second = ordered.chunk(2)
    return (first * second).sum(dim=1), None


def _two_views(loader: TrainLoader, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images with their position in the sample, that of second views raised by `count`.

    Of three views the first is for a classifier: the last two are what training contrasts.
    """
    for batch in loader.stream(0, loader.steps_per_epoch):
        yield batch.views[-2], batch.index
        yield batch.views[-1], batch.index + count
