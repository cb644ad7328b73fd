"""`zoo.embed`: features of images of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from zoo.api.encoding import encode, find_encoder
from zoo.api.given import check_path
from zoo.data.any_data import Data, open_images
from zoo.errors import DataError
from zoo.evaluation.embedding import Embedding, check_embedding_file, write_embedding
from zoo.release import Preprocess, Release


def embed(
    release_or_model: Release | nn.Module | str | Path,
    data: Data,
    *,
    split: Literal["train", "test"] | None = None,
    out: str | Path | None = None,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    device: str = "auto",
    workers: int | None = None,
    max_bad_images: int = 0,
) -> Embedding:
    """Encode images with any encoder: for search, clustering, plots.

    Args:
        release_or_model: as in `zoo.evaluate`.
        data: any, see `zoo.data.any_data.Data`. The images of a folder may lie at any depth.
        split: when None, all images of a folder, or of data in one part; else the test part.
        out: file that the features are written to as well, see `write_embedding`: .npz, .safetensors or
            .parquet.
        preprocess: of a model alone, how its images are made, as in `zoo.evaluate`.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode images; those of the release's recipe when None.
        max_bad_images: so many unreadable images are left out, with a warning that names them.

    Returns:
        Features, names, labels, class names; see `Embedding`.

    Raises:
        ZooError: for a model that ends in a classifier, missing data, more unreadable images than the limit,
            or a file that cannot be written; the latter, as far as can be told, before anything is encoded.
    """
    check_path("out", out)
    if out is not None:
        check_embedding_file(Path(out))
    if data is None:
        raise DataError("data: found nothing, expected a folder of images, a spec, or images in Python")
    found = open_images(data, split)
    encoder = find_encoder(release_or_model, preprocess)
    images = found.dataset
    features, places, left_out = encode(
        images,
        encoder.model,
        encoder.preprocess,
        release=encoder.release,
        device=device,
        workers=workers,
        max_bad_images=max_bad_images,
        doing="embedding",
    )
    kept = places.tolist()
    about: dict[str, Any] = {"encoder": encoder.name, "preprocess": asdict(encoder.preprocess)}
    if encoder.release is not None:
        sha256 = encoder.release.config["zoo"]["weights_sha256"]
        about["weights_sha256"] = sha256
    embedding = Embedding(
        features,
        tuple(map(images.name_of, kept)),
        torch.from_numpy(images.labels[kept]) if images.class_names else None,
        images.class_names,
        left_out,
        {**about, "data": images.settings["name"], "split": found.split},
    )
    if out is not None:
        write_embedding(embedding, Path(out))
    return embedding
