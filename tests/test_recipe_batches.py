"""No shipped recipe ends its epochs with a batch so small that BatchNorm makes anything of it."""

from __future__ import annotations

import pytest

from zoo import catalog
from zoo.data import open_dataset
from zoo.data.long_tail import class_sizes
from zoo.recipe import Recipe

PER_CLASS = {"cifar10": (5_000, 10), "cifar100": (500, 100)}  # of the originals


def images(recipe: Recipe) -> int | None:
    """Return how many images are trained on; None where they are not at hand and not known."""
    data = recipe.data
    if data.source.kind == "digits":
        return len(open_dataset(data, "train", None))
    known = PER_CLASS.get("cifar100" if "cifar100" in recipe.name else data.source.kind)
    if known is None or data.subset is not None:
        return None
    of_each, classes = known
    if data.long_tail is None:
        return of_each * classes
    return sum(class_sizes(data.long_tail, data.long_tail.max_per_class or of_each, classes))


KNOWN = {name: count for name in catalog.list_recipes() if (count := images(Recipe.load(name))) is not None}


@pytest.mark.parametrize("name", KNOWN)
def test_the_last_batch_of_an_epoch_is_large_enough(name: str) -> None:
    section = Recipe.load(name).training
    last = 0 if section.drop_last else KNOWN[name] % section.batch_size
    assert last == 0 or last >= 8, f"{KNOWN[name]} images in batches of {section.batch_size}"
