"""`ImageList`: which images a split has, told by their content and not by where a copy keeps them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ImageList(NamedTuple):
    """The images of a split, in order.

    Attributes:
        ids: what `zoo.data.image_ids.content_ids` gives for each image `[N]`, int64.
        sha256: hash of names and labels in the copy that was listed, see `ImageDataset.describe`: what is
            recorded of these images, whatever another copy calls them.
    """

    ids: NDArray[np.int64]
    sha256: str
