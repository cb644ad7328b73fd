"""Evaluation of features: linear probe, weighted kNN, few-shot, retrieval, learned centers; and metrics.

The names here work on any program's own features and are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
