"""Images: where they come from, which are kept, how they are augmented and batched.

Names are imported when they are first used, so that reading a configuration imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.data.batches import Batch
    from zoo.data.config import DataConfig, EvalView, LongTail, ViewsConfig, parse_data_spec
    from zoo.data.dataset import ImageDataset
    from zoo.data.loader import TrainLoader
    from zoo.data.sources import open_dataset
    from zoo.data.streamed import eval_images
    from zoo.data.views import TensorViews

__all__ = [
    "Batch",
    "DataConfig",
    "EvalView",
    "ImageDataset",
    "LongTail",
    "TensorViews",
    "TrainLoader",
    "ViewsConfig",
    "eval_images",
    "open_dataset",
    "parse_data_spec",
]

_HOME_OF = {
    "Batch": "batches",
    "DataConfig": "config",
    "EvalView": "config",
    "ImageDataset": "dataset",
    "LongTail": "config",
    "TensorViews": "views",
    "TrainLoader": "loader",
    "ViewsConfig": "config",
    "eval_images": "streamed",
    "open_dataset": "sources",
    "parse_data_spec": "config",
}


__getattr__ = attributes(__name__, _HOME_OF)
