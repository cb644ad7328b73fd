"""Evaluation on features: kNN and the linear probe against scikit-learn, and kNN against faiss where it is.

The floor of kNN is the product of all features. The probe's peer is the same regression by scikit-learn, on
standardised features; all get the same classes.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

from tests.benchmarks.harness import Row, gate, optional, timed
from zoo.evaluation.linear import fit_linear
from zoo.functional import knn_predict

TRAIN, TEST, DIM, CLASSES, K, TAU = 20_000, 4_000, 512, 100, 20, 0.07


def rows(device: torch.device) -> Iterator[Row]:
    """Measure both on a CPU, where the peers compute."""
    if device.type == "cpu":
        torch.manual_seed(0)
        centers, labels = torch.randn(CLASSES, DIM), torch.arange(TRAIN + TEST) % CLASSES
        features = F.normalize(centers[labels] + 5 * torch.randn(TRAIN + TEST, DIM), dim=1)
        yield _knn(features[:TRAIN], labels[:TRAIN], features[TRAIN:], device)
        yield _linear(features[:TRAIN], labels[:TRAIN], features[TRAIN:], device)


def _knn(bank: torch.Tensor, labels: torch.Tensor, test: torch.Tensor, device: torch.device) -> Row:
    def votes(similarity: np.ndarray, index: np.ndarray) -> torch.Tensor:
        weights, found = torch.from_numpy(similarity).double().div(TAU).exp(), labels[torch.from_numpy(index)]
        return torch.zeros(len(test), CLASSES, dtype=torch.float64).scatter_add_(1, found, weights).argmax(1)

    def ours() -> torch.Tensor:
        return knn_predict(bank, labels, test, k=K, tau=TAU, num_classes=CLASSES)

    def with_sklearn() -> torch.Tensor:
        found = NearestNeighbors(n_neighbors=K, algorithm="brute", metric="cosine").fit(bank.numpy())
        distance, index = found.kneighbors(test.numpy())
        return votes(1 - distance, index)

    def with_torch() -> torch.Tensor:
        parts = [(part @ bank.T).topk(K) for part in test.split(1024)]
        return votes(*(torch.cat(each).numpy() for each in zip(*parts, strict=True)))

    def with_faiss() -> torch.Tensor:
        index = faiss.IndexFlatIP(DIM)
        index.add(bank.numpy())
        return votes(*index.search(test.numpy(), K))

    peers = {"product and topk": with_torch, "scikit-learn": with_sklearn}
    if faiss := optional("faiss"):
        faiss.omp_set_num_threads(1)
        peers["faiss"] = with_faiss
    expected = ours()
    different = max(float((expected != peer()).double().mean()) for peer in peers.values())
    name, equal = f"kNN, {TEST:,} of {TRAIN:,} x {DIM}", gate("share of other predictions", different, 0.001)
    product = [ours, *peers.values()]
    return timed(name, [*peers], product, 1.0, equal, device, 5, floor=lambda: test @ bank.T)


def _linear(x: torch.Tensor, labels: torch.Tensor, test: torch.Tensor, device: torch.device) -> Row:
    l2 = 1e-3
    spread, mean = torch.std_mean(x, dim=0, correction=0)

    def with_sklearn() -> torch.Tensor:
        model = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-8, max_iter=3000)
        model.fit(((x - mean) / spread).double().numpy(), labels.numpy())
        return torch.from_numpy(model.predict(((test - mean) / spread).double().numpy()))

    def ours() -> torch.Tensor:
        return fit_linear(x, labels, CLASSES, l2_grid=[l2]).logits(test).argmax(dim=1)

    different = float((ours() != with_sklearn()).double().mean())
    equal = gate("share of other predictions", different, 0.001)
    name = f"linear probe, {TRAIN:,} x {DIM}, {CLASSES} classes, one strength"
    return timed(name, "scikit-learn", [ours, with_sklearn], 0.95, equal, device, 3, 0)
