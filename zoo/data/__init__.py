"""Images: where they come from, which are kept, how they are augmented and batched.

Names are imported when they are first used, so that reading a configuration imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.data.config import DataConfig, EvalView, LongTail, ViewsConfig, parse_data_spec
from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.data.batches import Batch as Batch
    from zoo.data.batches import TensorViews as TensorViews
    from zoo.data.batches import TrainLoader as TrainLoader
    from zoo.data.batches import eval_images as eval_images
    from zoo.data.dataset import ImageDataset as ImageDataset
    from zoo.data.sources import open_dataset as open_dataset

_HOME_OF = {
    **dict.fromkeys(("Batch", "TensorViews", "TrainLoader", "eval_images"), "batches"),
    **{"ImageDataset": "dataset", "open_dataset": "sources"},
}
__all__ = ["DataConfig", "EvalView", "LongTail", "ViewsConfig", "parse_data_spec", *_HOME_OF]  # noqa: PLE0604
__getattr__ = attributes(__name__, _HOME_OF)
