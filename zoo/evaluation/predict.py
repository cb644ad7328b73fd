"""`zoo.predict`: classify images with a release's learned centers."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import isfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from zoo.config import is_number
from zoo.data.any_data import TABLES, Data, open_images
from zoo.data.config import path_of
from zoo.evaluation.encode import check_number, encode_images, open_encoder
from zoo.hub import open as open_release
from zoo.release import Release


class Prediction(NamedTuple):
    """An image (its path, or e.g. "image 3") and its classes with probabilities, most probable first."""

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

    `data` is a PIL image, an image file, or any data, see `zoo.data.any_data.Data`; `top` is the number of
    classes to return per image, at most all. Other arguments are those of `embed`.

    Returns:
        For each image, in order, its classes and their probabilities, the softmax of the classifier's logits;
        no class prior is added, see `prior_words`. ZooError for a release without centers.
    """
    check_number("top", top, 1)
    opened = open_release(release)
    centers = opened.require_centers()
    path = path_of(data)
    is_image = path is not None and isfile(path) and path.suffix.lower() not in TABLES
    dataset, _ = open_images([path] if is_image else [data] if isinstance(data, Image.Image) else data)
    folder = dataset.store.folder or Path()  # names are relative to it
    encoder = open_encoder(opened, device=device, workers=workers)
    features, places, _ = encode_images(dataset, encoder, "classifying", max_bad_images)
    predictions, images = list[Prediction](), iter(places)
    for rows in torch.split(features, 1 << 14):  # limits the memory of the scores
        probability, index = centers.nearest(rows, top)
        for shares, classes in zip(probability.tolist(), index.tolist(), strict=True):
            named = zip((centers.class_names[c] for c in classes), shares, strict=True)
            predictions.append(Prediction(str(folder / dataset.name_of(next(images))), tuple(named)))
    return tuple(predictions)


def prior_in_loss(recipe: Mapping[str, Any]) -> bool | None:
    """Return whether the loss of a release's recipe accounts for the class prior; None: unknown.

    If it does (PaCo's rebalance, Balanced Softmax, ...), the centers do not contain the prior; plain
    cross-entropy leaves the training set's prior in them.
    """
    objective = recipe.get("objective")
    if not isinstance(objective, Mapping) or recipe.get("method") is not None:  # methods may have two losses
        return None
    name, loss = objective.get("name"), objective.get("loss")
    if name in ("paco", "gpaco"):
        return objective.get("rebalance")
    if name == "bcl":
        return objective.get("head") != "cosine" or None
    if isinstance(loss, Mapping):  # with settings of its own
        adjusted = loss.get("name") == "logit_adjustment" and is_number(loss.get("tau"))
        return loss["tau"] != 0 if adjusted else None
    return {"cross_entropy": False, "balanced_softmax": True}.get(str(loss)) if name == "classify" else None


def prior_words(release: Release) -> str:
    """Describe a release's probabilities: whether its training set's class prior is in them."""
    words = "whether the training set's class prior is in it is not known"
    if (known := prior_in_loss(release.recipe)) is not None:
        words = "without the class prior" if known else "with the training set's class prior"
    return f"probability: softmax of the centers' logits, {words}"
