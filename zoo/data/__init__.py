"""Image data: sources, selection, augmentation and batches.

Names are imported on first use, so that reading a configuration does not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
