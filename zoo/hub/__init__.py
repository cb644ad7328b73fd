"""Releases by name, on this machine or on the Hub. Imports torch only when it is needed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
