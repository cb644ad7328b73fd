"""Measures of features: linear probe, weighted kNN, few-shot, retrieval, learned centers; and their metrics.

What is named here is for any program's own features, and is imported when it is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
