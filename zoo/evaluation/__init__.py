"""Measures of features: linear probe, weighted kNN, few-shot, retrieval, learned centers; and their metrics.

What is named here is for any program's own features; names are fetched when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.evaluation.embed import Embedding
    from zoo.evaluation.encode import Features, extract
    from zoo.evaluation.linear import LinearClassifier, fit_linear
    from zoo.evaluation.metrics import classification_metrics
    from zoo.evaluation.predict import Prediction
    from zoo.evaluation.retrieval import retrieval_metrics
    from zoo.functional.knn import KnnPrediction, knn_predict

_HOME_OF = {
    "Embedding": "embed",
    "Features": "encode",
    "KnnPrediction": ".functional.knn",
    "LinearClassifier": "linear",
    "Prediction": "predict",
    "classification_metrics": "metrics",
    "extract": "encode",
    "fit_linear": "linear",
    "knn_predict": ".functional.knn",
    "retrieval_metrics": "retrieval",
}

__all__ = [
    "Embedding",
    "Features",
    "KnnPrediction",
    "LinearClassifier",
    "Prediction",
    "classification_metrics",
    "extract",
    "fit_linear",
    "knn_predict",
    "retrieval_metrics",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__getattr__ = attributes(__name__, _HOME_OF)
