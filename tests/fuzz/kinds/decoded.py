"""The file of decoded images that a run keeps for the next one, and its record."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import torch

from tests.data_fixtures import list_dataset, photo
from tests.fuzz import mutate
from tests.fuzz.case import Case, WrongResultError
from zoo.data.cache import decode_all, find_decoded

CPU = torch.device("cpu")


def decoded(random: Random, folder: Path) -> Case:
    """A file or a record that is damaged: what is used holds the images, else nothing is."""
    dataset = list_dataset(folder, [photo(12, 9, seed) for seed in range(3)])
    pixels = decode_all(dataset, 8, device=CPU, cache=False).pixels
    shutil.rmtree(cache := _cache(), ignore_errors=True)
    decode_all(dataset, 8, device=CPU, cache=True)
    note = random.choice((".npy", ".json"))
    (file,) = cache.glob(f"*{note}")
    content = mutate.octets(random, file.read_bytes())
    file.unlink()  # what is mapped keeps the file of before
    file.write_bytes(content)

    def read() -> None:
        found = find_decoded(dataset, 8)
        again = decode_all(dataset, 8, device=CPU, cache=True)
        for images in (found, again):
            if images is not None and not torch.equal(images.pixels, pixels):
                raise WrongResultError("other pixels than the images have")

    return Case({"read": read}, (), note)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "zoo" / "decoded"
