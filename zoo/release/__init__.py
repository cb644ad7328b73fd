"""The release folder, which `pretrain` writes, the Hub stores, and `zoo.load`, timm and transformers read."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
