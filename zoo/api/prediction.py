"""`zoo.predict`: classes of images, by a release's learned centers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from zoo.api.encoding import encode, opened
from zoo.api.given import check_number
from zoo.data.any_data import TABLES, Data, open_images
from zoo.evaluation.center_loss import CenterLoss, center_loss
from zoo.files import is_dir, is_file
from zoo.functional.checks import check_features
from zoo.release import Release

_ROWS = 1 << 14  # of features that are compared with the centers together


class Prediction(NamedTuple):
    """What an image is taken for.

    Attributes:
        image: its path as it was given, or "image 3" of an image of PIL at place 3.
        classes: name and probability of the most probable classes, most probable first.
    """

    image: str
    classes: tuple[tuple[str, float], ...]


def predict(
    release: Release | str | Path,
    images: Image.Image | Data,
    top: int = 1,
    *,
    device: str = "auto",
    workers: int | None = None,
    max_bad_images: int = 0,
) -> tuple[Prediction, ...]:
    """Classify images with the learned class centers.

    Args:
        release: a release with centers, its name or folder.
        images: a PIL image, an image file, or any data, see `zoo.data.any_data.Data`; in a list also folders,
            of which every image at any depth is taken. Files are read in batches: all of them together need
            not fit into memory.
        top: how many classes of each image; all where there are fewer.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode images; those of the release's recipe when None.
        max_bad_images: so many unreadable images are left out, with a warning that names them.

    Returns:
        For each image, in order, its classes and their probabilities: the softmax of the classifier's logits,
        as `Release.nearest_classes` gives it, and timm or transformers with the released classifier.
        No class prior is added. Whether the centers have learned that of their training set, `prior_words`
        tells.

    Raises:
        ZooError: for a release without centers, a file that is not there, more unreadable images than the
            limit, or anything but images.
    """
    check_number("top", top, 1)
    found = opened(release)
    centers = found.require_centers()
    if isinstance(images, Iterator):
        images = list(images)
    path = Path(images) if isinstance(images, str | Path) else None
    single = isinstance(images, Image.Image) or (
        path is not None and is_file(path) and path.suffix.lower() not in TABLES
    )
    dataset, _ = open_images([images] if single else images)
    folder = path if path is not None and is_dir(path) else Path()  # names are relative to it
    features, places, _ = encode(
        dataset,
        found.load(),
        found.preprocess,
        release=found,
        device=device,
        workers=workers,
        max_bad_images=max_bad_images,
        doing="classifying",
    )
    check_features(features, "features", dim=centers.weight.shape[1])
    predictions = list[Prediction]()
    for rows, part in zip(torch.split(places, _ROWS), torch.split(features, _ROWS), strict=True):
        nearest = centers.nearest(part, top)
        for place, *columns in zip(
            rows.tolist(), nearest.index.tolist(), nearest.probability.tolist(), strict=True
        ):
            classes = zip((centers.class_names[c] for c in columns[0]), columns[1], strict=True)
            predictions.append(Prediction(str(folder / dataset.name_of(place)), tuple(classes)))
    return tuple(predictions)


def prior_words(release: Release) -> str:
    """Say what the probabilities of a release mean: whether its training set's class prior is in them.

    A prior that the loss adds to the logits (PaCo, Balanced Softmax, ...) is not in the centers; plain
    cross-entropy leaves it in them.
    """
    what = "probability: softmax of the centers' logits"
    unknown = f"{what}; whether the training set's class prior is in it is not known"
    if "converted" in release.recipe:
        return f"{unknown}: the release was converted"
    loss = center_loss(release.recipe, release.require_centers().class_counts)
    if not isinstance(loss, CenterLoss):
        return f"{unknown}: {loss}"
    scale = "" if loss.tau == 1 else f", which the loss divided by {loss.tau:g}"
    if bool((loss.prior != 0).any()):
        return f"{what}{scale}, without the class prior that was in the loss ({loss.words})"
    return f"{what}{scale}, with the training set's class prior, which they learned from it"
