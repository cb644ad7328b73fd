from .embed import Embedding as Embedding
from .encode import Features as Features
from .encode import extract as extract
from .linear import LinearClassifier as LinearClassifier
from .linear import fit_linear as fit_linear
from .measure import knn_predict as knn_predict  # type: ignore[attr-defined]
from .metrics import classification_metrics as classification_metrics
from .metrics import retrieval_metrics as retrieval_metrics
from .predict import Prediction as Prediction
