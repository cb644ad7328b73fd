"""Training objectives, imported when they are used, so that reading a recipe imports no torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
