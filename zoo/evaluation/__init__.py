"""Measures of features: linear probe, weighted kNN, few-shot, retrieval, learned centers; and their metrics.

What is named here is for any program's own features.
"""

from zoo.evaluation.embed import Embedding
from zoo.evaluation.encode import Features, extract
from zoo.evaluation.linear import LinearClassifier, fit_linear
from zoo.evaluation.metrics import classification_metrics, retrieval_metrics
from zoo.evaluation.predict import Prediction
from zoo.functional import KnnPrediction, knn_predict

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
