"""`zoo.embed`: compute features of your own images and write them to a file."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from zoo.data.any_data import Data, open_images
from zoo.errors import ZooError
from zoo.evaluation.encode import encode_images, open_encoder
from zoo.files import check_writable, write_atomic, writing
from zoo.release import Preprocess, Release


class Embedding(NamedTuple):
    """Features of images, for search, clustering, plots.

    Attributes:
        features: `[N, D]`, float32, on the CPU, as the encoder returns them (not normalised).
        names: N names: paths relative to the folder, or the data set's names of the images.
        labels: class of each image `[N]`, int64; None without classes.
        class_names: in the order of the labels; empty without classes.
        left_out: name and error of each image that could not be read.
        about: plain values: encoder, SHA-256 of its weights, data, split, preprocess.
    """

    features: Tensor
    names: tuple[str, ...]
    labels: Tensor | None
    class_names: tuple[str, ...]
    left_out: Mapping[str, str]
    about: Mapping[str, Any]


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
        data: any, see `zoo.data.any_data.Data`. A folder's images may be at any depth.
        split: None: all images of a folder or of data without splits, else the test split.
        out: file to write the features to, .npz or .parquet, see `write_embedding`.
        preprocess: for a model that is not a release, as in `zoo.evaluate`.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode images; None: as in the release's recipe.
        max_bad_images: up to this many unreadable images are skipped, with a warning that names them.

    Raises:
        ZooError: for a model that ends in a classifier, missing data, more unreadable images than the limit,
            or a file that cannot be written.
    """
    if out is not None:  # fail before anything is encoded
        check_writable(Path(out), "out", ".npz .parquet")
        if Path(out).suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
            raise ZooError(f'out: "{out}" needs the package pyarrow: pip install "contrastive-zoo[train]"')
    images, opened = open_images(data, split)
    encoder = open_encoder(release_or_model, preprocess, device=device, workers=workers)
    features, places, left_out = encode_images(images, encoder, "embedding", max_bad_images)
    about: dict[str, Any] = {"encoder": encoder.name, "preprocess": asdict(encoder.preprocess)}
    if encoder.release is not None:
        about["weights_sha256"] = encoder.release.config["zoo"]["weights_sha256"]
    about |= {"data": images.settings["name"], "split": opened}
    names, classes = tuple(map(images.name_of, places)), images.class_names
    labels = torch.from_numpy(images.labels[places]) if classes else None
    embedding = Embedding(features, names, labels, classes, left_out, about)
    if out is not None:
        write_embedding(embedding, Path(out))
    return embedding


def write_embedding(found: Embedding, file: Path) -> None:
    """Write an embedding atomically; raise `ZooError` if that fails.

    - `.npz`: arrays `features`, `names`, and with classes `labels` and `class_names`; `about` as JSON.
    - `.parquet`: one row per image, columns `file`, `label` (the class name) and `feature` (a list of D
      float32); `about` is in the schema's metadata.

    Bytes of a name that are not UTF-8 become a backslash, x and two hex digits.
    """
    names, class_names = (
        [each.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for each in texts]
        for texts in (found.names, found.class_names)
    )
    about = json.dumps(found.about)

    def npz(temporary: Path) -> None:
        arrays: dict[str, Any] = {"features": found.features.numpy(), "names": np.array(names)}
        if found.labels is not None:
            arrays |= {"labels": found.labels.numpy(), "class_names": np.array(class_names)}
        with temporary.open("wb") as stream:  # NumPy would append ".npz" to a file name
            np.savez(stream, **arrays, about=np.array(about))

    def parquet(temporary: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"file": pa.array(names, pa.string())}
        if found.labels is not None:
            words = pa.array(class_names, pa.string())
            columns["label"] = pa.DictionaryArray.from_arrays(pa.array(found.labels.numpy()), words)
        values = pa.array(found.features.contiguous().numpy().reshape(-1))
        columns["feature"] = pa.FixedSizeListArray.from_arrays(values, found.features.shape[1])
        pq.write_table(pa.table(columns).replace_schema_metadata({"about": about}), temporary)

    with writing(f'"{file}"'):
        write_atomic(file, npz if file.suffix.lower() == ".npz" else parquet)
