"""`zoo.predict`: classes of images, by a release's learned centers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from zoo.config import is_number
from zoo.data.any_data import TABLES, Data, open_images
from zoo.evaluation.encode import check_number, encode_images, open_encoder
from zoo.files import is_dir, is_file
from zoo.functional.checks import check_features
from zoo.hub import open as open_release
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
    data: Image.Image | Data,
    top: int = 1,
    *,
    device: str = "auto",
    workers: int | None = None,
    max_bad_images: int = 0,
) -> tuple[Prediction, ...]:
    """Classify images with the learned class centers.

    Args:
        release: a release with centers, its name or folder.
        data: a PIL image, an image file, or any data, see `zoo.data.any_data.Data`; in a list also folders,
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
    opened = open_release(release)
    centers = opened.require_centers()
    if isinstance(data, Iterator):
        data = list(data)
    path = Path(data) if isinstance(data, str | Path) else None
    single = isinstance(data, Image.Image) or (
        path is not None and is_file(path) and path.suffix.lower() not in TABLES
    )
    dataset, _ = open_images([data] if single else data)
    folder = path if path is not None and is_dir(path) else Path()  # names are relative to it
    (features, places), _ = encode_images(
        dataset,
        open_encoder(opened),
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


def prior_in_loss(recipe: Mapping[str, Any]) -> bool | None:
    """Return whether the loss that centers were trained with has the class prior; None: not known.

    With it (PaCo's rebalance, Balanced Softmax, ...) the centers are without the prior as they are; plain
    cross-entropy leaves the training set's prior in them.

    Args:
        recipe: of a release, as plain values.
    """
    objective = recipe.get("objective")
    objective = objective if isinstance(objective, Mapping) else {}
    name, loss = objective.get("name"), objective.get("loss")
    if isinstance(recipe.get("method"), Mapping):  # which trains in stages, with several losses
        return None
    if name in ("paco", "gpaco"):
        rebalance = objective.get("rebalance")
        return None if rebalance is None else bool(rebalance)
    if name == "bcl" and objective.get("head") != "cosine":
        return True
    if name == "classify":
        settings = loss if isinstance(loss, Mapping) else {"name": loss}
        if settings.get("name") == "logit_adjustment":
            return tau != 0 if is_number(tau := settings.get("tau")) else None
        return {"cross_entropy": False, "balanced_softmax": True}.get(str(settings.get("name")))
    return None


def prior_words(release: Release) -> str:
    """Say what the probabilities of a release mean: whether its training set's class prior is in them."""
    words = {
        True: "without the class prior that was in the loss",
        False: "with the training set's class prior, which they learned from it",
        None: "whether the training set's class prior is in it is not known",
    }
    return f"probability: softmax of the centers' logits, {words[prior_in_loss(release.recipe)]}"
