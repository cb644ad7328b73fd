"""Images: where they come from, which are kept, how they are augmented and batched.

Names are imported when they are first used, so that reading a configuration imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.data.batches import Batch as Batch
    from zoo.data.batches import TensorViews as TensorViews
    from zoo.data.batches import TrainLoader as TrainLoader
    from zoo.data.batches import eval_images as eval_images
    from zoo.data.config import DataConfig as DataConfig
    from zoo.data.config import EvalView as EvalView
    from zoo.data.config import LongTail as LongTail
    from zoo.data.config import ViewsConfig as ViewsConfig
    from zoo.data.config import parse_data_spec as parse_data_spec
    from zoo.data.dataset import ImageDataset as ImageDataset
    from zoo.data.sources import open_dataset as open_dataset

_HOME_OF = {
    **dict.fromkeys(("DataConfig", "EvalView", "LongTail", "ViewsConfig", "parse_data_spec"), "config"),
    "Batch": "batches",
    "ImageDataset": "dataset",
    "TensorViews": "batches",
    "TrainLoader": "batches",
    "eval_images": "batches",
    "open_dataset": "sources",
}
__all__ = [*_HOME_OF]  # noqa: PLE0604
__getattr__ = attributes(__name__, _HOME_OF)
