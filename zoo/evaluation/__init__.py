"""Measures of features: linear probe, weighted kNN, learned centers; their metrics, tables and plots.

Everything here works on plain tensors and modules; what joins it to data sets and releases is `zoo.api`.
What is named here is for any program's own features; names are fetched when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.evaluation.features import Features, extract
    from zoo.evaluation.linear import LinearClassifier, fit_linear
    from zoo.evaluation.metrics import classification_metrics
    from zoo.evaluation.retrieval import Pairs, Ranked, Retrieval
    from zoo.functional.knn import KnnPrediction, knn_predict

__all__ = [
    "Features",
    "KnnPrediction",
    "LinearClassifier",
    "Pairs",
    "Ranked",
    "Retrieval",
    "classification_metrics",
    "extract",
    "fit_linear",
    "knn_predict",
]

_HOME_OF = {
    "Features": "features",
    "KnnPrediction": ".functional.knn",
    "LinearClassifier": "linear",
    "Pairs": "retrieval",
    "Ranked": "retrieval",
    "Retrieval": "retrieval",
    "classification_metrics": "metrics",
    "extract": "features",
    "fit_linear": "linear",
    "knn_predict": ".functional.knn",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__getattr__ = attributes(__name__, _HOME_OF)
