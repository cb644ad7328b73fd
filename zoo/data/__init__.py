"""Images: where they come from, which are kept, how they are augmented and batched.

Names are imported when they are first used, so that reading a configuration imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.data.config import DataConfig, EvalView, LongTail, ViewsConfig, parse_data_spec
from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.data.batches import Batch as Batch
    from zoo.data.dataset import ImageDataset as ImageDataset
    from zoo.data.loader import TrainLoader as TrainLoader
    from zoo.data.sources import open_dataset as open_dataset
    from zoo.data.streamed import eval_images as eval_images
    from zoo.data.views import TensorViews as TensorViews

_HOME_OF = {
    **{"Batch": "batches", "ImageDataset": "dataset", "TensorViews": "views", "TrainLoader": "loader"},
    **{"eval_images": "streamed", "open_dataset": "sources"},
}
__all__ = ["DataConfig", "EvalView", "LongTail", "ViewsConfig", "parse_data_spec", *_HOME_OF]  # noqa: PLE0604
__getattr__ = attributes(__name__, _HOME_OF)
