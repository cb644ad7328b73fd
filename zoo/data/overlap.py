"""Images that a data set has in both of its splits."""

from __future__ import annotations

from zoo.data.dataset import ImageDataset


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
