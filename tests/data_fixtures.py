"""Small hand-made images and data sets for the tests of `zoo.data`."""

import numpy as np
from PIL import Image

from zoo.data import DataConfig, open_dataset
from zoo.data.config import ListFiles

MEAN = [0.5, 0.4, 0.3]
STD = [0.2, 0.25, 0.3]


def photo(width, height, seed):
    """Smooth colours with some noise: like a photograph, it changes little from pixel to pixel."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    waves = [
        np.sin(random.uniform(1, 7) * x + random.uniform(1, 7) * y + random.uniform(0, 6)) for _ in "rgb"
    ]
    pixels = 127 + 110 * np.stack(waves, -1) + random.normal(0, 6, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def list_dataset(folder, images):
    """Write images as PNG files 0.png, 1.png, ... with a list file, and open them."""
    for number, image in enumerate(images):
        image.save(folder / f"{number}.png")
    lines = [f"{number}.png {number % 2}\n" for number in range(len(images))]
    (folder / "all.txt").write_text("".join(lines))
    source = ListFiles(train="all.txt", test="all.txt")
    return open_dataset(DataConfig(source=source), "train", folder)
