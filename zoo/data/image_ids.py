"""Images told by their content: a list of what was drawn by row finds them in copies of other orders."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zoo.data.dataset import ImageDataset
from zoo.data.decode import progress
from zoo.errors import DataError
from zoo.release.tensors import ImageList

UNREADABLE = -1
MAX_IMAGES = 4_000_000  # to decode and hash so many takes minutes, at the end of a training of days


class OtherImages(DataError):
    """Not all images of a list are in the data set."""


def content_ids(dataset: ImageDataset) -> NDArray[np.int64]:
    """Return for each image a number of its pixels and label `[N]`, int64; one that cannot be read has -1.

    It is the first 8 bytes, little-endian, of the SHA-256 of a line "WIDTH HEIGHT LABEL" and the RGB bytes of
    the rows: two of a million different images agree with a probability of 3e-8.
    """
    ids = np.full(len(dataset), UNREADABLE, dtype=np.int64)
    with progress(len(dataset), "comparing") as advance:
        for index, label in enumerate(dataset.labels.tolist()):
            advance(1)
            with suppress(DataError):
                image = dataset.image(index)
                digest = hashlib.sha256(f"{image.width} {image.height} {label}\n".encode() + image.tobytes())
                ids[index] = int.from_bytes(digest.digest()[:8], "little", signed=True)
    return ids


def list_images(dataset: ImageDataset) -> ImageList | None:
    """Return the list of a data set's images; None where other copies do not exist or cannot be told by it.

    That is for digits, image files, loss in compression, unreadable images, more than `MAX_IMAGES`, and for
    partial labels, which are drawn by row.
    """
    if not 0 < len(dataset) <= MAX_IMAGES or dataset.candidates is not None or not dataset.has_copies():
        return None
    ids = content_ids(dataset)
    return None if (ids == UNREADABLE).any() else ImageList(ids, dataset.describe()["sha256"])


def find_listed(drawn: ImageDataset, whole: ImageDataset, listed: ImageList) -> ImageDataset:
    """Return the listed images of `whole`, in the order of the list; of equal ones each stands for the other.

    `drawn`, of the same copy, is returned if it is what was listed, by names and content. Raises OtherImages,
    which says how many are not there.
    """
    same = len(drawn) == len(listed.ids) and drawn.describe()["sha256"] == listed.sha256
    if same and np.array_equal(content_ids(drawn), listed.ids):
        return drawn
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, content in reversed(list(enumerate(content_ids(whole).tolist()))):
        places[content].append(place)  # the first of equal ones is taken from the end
    found = [places[content].pop() for content in listed.ids.tolist() if places[content]]
    if missing := len(listed.ids) - len(found):
        counts = f"{missing:,} of the {len(listed.ids):,} listed images are not among the {len(whole):,} here"
        raise OtherImages(f"{counts}, by their pixels and labels")
    return whole.subset(found).known_as(listed.sha256)


def shared_images(train_set: ImageDataset, test_set: ImageDataset) -> int:
    """Return how many test images are training images too, by their files or their names in shared tables."""
    train, test = train_set.encoded(), test_set.encoded()
    files = set[Path]() if train is None else {*train.files}
    if train is None or test is None or files.isdisjoint(test.files):
        return 0
    if not train.selection:  # files: names are relative to one of two folders
        return len([file for file in test.files if file in files])
    known = {*map(train_set.name_of, range(len(train_set)))}
    return sum(name in known for name in map(test_set.name_of, range(len(test_set))))
