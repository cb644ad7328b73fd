"""Images told by their content: one data set lies in archives and parquet files of other names and orders.

A long tail draws by row, so with one seed it draws other images from another copy. A list of what was drawn
finds the same ones in every copy whose pixels are the data set's.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from zoo.data.dataset import ImageDataset
from zoo.errors import DataError
from zoo.image_list import ImageList

MAX_BYTES = 2 << 30  # of pixels: hashing so many takes a minute or two, and more lie nowhere in two forms


class OtherImages(DataError):
    """Not all images of a list are in the data set."""


def content_ids(dataset: ImageDataset) -> NDArray[np.int64]:
    """Return for each image a number of its pixels and label `[N]`, int64; one that cannot be read has -1.

    It is the first 8 bytes, little-endian, of the SHA-256 of a line "WIDTH HEIGHT LABEL" and the RGB bytes of
    the rows: two of a million different images agree with a probability of 3e-8.
    """
    ids = np.empty(len(dataset), dtype=np.int64)
    for index, label in enumerate(dataset.labels.tolist()):
        try:
            image = dataset.image(index)
        except DataError:
            ids[index] = -1
            continue
        digest = hashlib.sha256(f"{image.width} {image.height} {label}\n".encode())
        digest.update(image.tobytes())
        ids[index] = int.from_bytes(digest.digest()[:8], "little", signed=True)
    return ids


def list_images(dataset: ImageDataset) -> ImageList | None:
    """List the images of a data set; None where other copies could not be told from it by content.

    That is where the images come with this project, are files with names of their own, are compressed with
    loss, cannot all be read, or are more than `MAX_BYTES`; and for partial labels, which are drawn by row.
    """
    if not dataset.has_copies or dataset.candidates is not None or not len(dataset):
        return None
    try:
        width, height = dataset.size_of(0)
    except DataError:
        return None
    if len(dataset) * width * height * 3 > MAX_BYTES:
        return None
    ids = content_ids(dataset)
    return None if (ids == -1).any() else ImageList(ids, dataset.describe()["sha256"])


def find_listed(dataset: ImageDataset, listed: ImageList) -> ImageDataset:
    """Return the listed images out of `dataset`, in the order of the list.

    Images with equal pixels and label stand for each other, as often as both have them.

    Raises:
        OtherImages: saying how many are not there.
    """
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, content in enumerate(content_ids(dataset).tolist()):
        if content != -1:
            places[content].append(place)
    found = [places[content].pop(0) if places[content] else None for content in listed.ids.tolist()]
    missing = found.count(None)
    if missing:
        raise OtherImages(
            f"{missing:,} of the {len(found):,} listed images are not among the {len(dataset):,} here"
        )
    return dataset.subset([place for place in found if place is not None]).known_as(listed.sha256)
