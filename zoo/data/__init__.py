"""Images: where they come from, which are kept, how they are augmented and batched.

Names are imported when they are first used, so that reading a configuration imports no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
