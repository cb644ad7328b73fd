"""Building blocks of objectives, with state only in buffers and parameters. Names are imported on use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
