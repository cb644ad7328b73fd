"""Images told by their content: one data set lies in archives and parquet files of other names and orders.

A long tail draws by row, so with one seed it draws other images from another copy. A list of what was drawn
finds the same ones in every copy whose pixels are the data set's.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Generator
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from zoo.data.dataset import ImageDataset
from zoo.data.decode import progress
from zoo.errors import DataError
from zoo.image_list import ImageList

MAX_BYTES = 32 << 30  # of pixels: to decode and hash so many takes minutes, at the end of a training of days
UNREADABLE = -1
MAX_IMAGES = 4_000_000


class OtherImages(DataError):
    """Not all images of a list are in the data set."""


def content_ids(dataset: ImageDataset) -> NDArray[np.int64]:
    """Return for each image a number of its pixels and label `[N]`, int64; one that cannot be read has -1.

    It is the first 8 bytes, little-endian, of the SHA-256 of a line "WIDTH HEIGHT LABEL" and the RGB bytes of
    the rows: two of a million different images agree with a probability of 3e-8.
    """
    return np.fromiter((content for content, _ in _contents(dataset)), dtype=np.int64, count=len(dataset))


def _contents(dataset: ImageDataset) -> Generator[tuple[int, int]]:
    """Yield the id of each image, and how many bytes its pixels have."""
    with progress(len(dataset), "comparing") as advance:
        for index, label in enumerate(dataset.labels.tolist()):
            advance(1)
            try:
                image = dataset.image(index)
            except DataError:
                yield UNREADABLE, 0
                continue
            pixels = image.tobytes()
            digest = hashlib.sha256(f"{image.width} {image.height} {label}\n".encode())
            digest.update(pixels)
            yield int.from_bytes(digest.digest()[:8], "little", signed=True), len(pixels)


def list_images(dataset: ImageDataset) -> ImageList | None:
    """List the images of a data set; None where other copies could not be told from it by content.

    That is where the images come with this project, are files with names of their own, are compressed with
    loss, cannot all be read, or are more than `MAX_IMAGES` or `MAX_BYTES`; and for partial labels, which are
    drawn by row.
    """
    if not 0 < len(dataset) <= MAX_IMAGES or dataset.candidates is not None or not dataset.has_copies():
        return None
    ids, size = np.empty(len(dataset), dtype=np.int64), 0
    with closing(_contents(dataset)) as contents:
        for index, (content, nbytes) in enumerate(contents):
            size += nbytes
            if content == UNREADABLE or size > MAX_BYTES:
                return None
            ids[index] = content
    return ImageList(ids, dataset.describe()["sha256"])


def are_listed(dataset: ImageDataset, listed: ImageList) -> bool:
    """Return whether the images are the listed ones, in that order, and have the names that were listed.

    Names alone would not do: rows of two files may be called alike and hold other images.
    """
    if len(dataset) != len(listed.ids) or dataset.describe()["sha256"] != listed.sha256:
        return False
    return np.array_equal(content_ids(dataset), listed.ids)


def find_listed(dataset: ImageDataset, listed: ImageList) -> ImageDataset:
    """Return the listed images out of `dataset`, in the order of the list.

    Images with equal pixels and label stand for each other, as often as both have them.

    Raises:
        OtherImages: saying how many are not there, and why that may be.
    """
    places: defaultdict[int, list[int]] = defaultdict(list)
    ids = content_ids(dataset)
    for place in range(len(ids) - 1, -1, -1):  # the first of equal ones is taken from the end
        places[int(ids[place])].append(place)
    unreadable = len(places.pop(UNREADABLE, ()))
    found = [places[content].pop() if places[content] else None for content in listed.ids.tolist()]
    missing = found.count(None)
    if missing:
        broken = f", of which {unreadable:,} cannot be read" if unreadable else ""
        raise OtherImages(
            f"{missing:,} of the {len(found):,} listed images are not among the {len(dataset):,} "
            f"here{broken}, by their pixels and labels: this is other data, its pixels were changed, or its "
            "classes are numbered otherwise"
        )
    return dataset.subset([place for place in found if place is not None]).known_as(listed.sha256)


def shared_images(train_set: ImageDataset, test_set: ImageDataset) -> int:
    """Return how many test images are training images too, as far as files and names tell.

    An image file in both is one image. Of files that hold many images the names in them are compared. Images
    that come with their data set (digits, CIFAR's archives) are what they are: 0.
    """
    train, test = train_set.encoded(), test_set.encoded()
    if train is None or test is None or {*train.files}.isdisjoint(test.files):
        return 0
    if len(train.files) == len(train_set) and len(test.files) == len(test_set):
        known = {*train.files}
        return sum(file in known for file in test.files)
    names = {train_set.name_of(index) for index in range(len(train_set))}
    return sum(test_set.name_of(index) in names for index in range(len(test_set)))
