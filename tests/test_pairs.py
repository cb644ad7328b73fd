"""Every pair of a recipe's features either is refused, by a key, or trains two steps to a finite loss.

Pairs that are not refused are trained many at a time: as few sets of features as have each pair in one.
`golden/pairs.json` lists the refused ones: a pair that begins or ceases to be refused shows there.
`python -m tests.test_pairs` writes it anew.
"""

import json
from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_step import CPU
from tests.test_training import recipe
from zoo.data import open_dataset
from zoo.errors import ZooError
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.build import open_loader, require_batches
from zoo.training.monitor import Monitor, split_validation
from zoo.training.stages import first_stage
from zoo.training.step import Stepper

REFUSED = Path(__file__).parent / "golden" / "pairs.json"
EARLY = "{validation_fraction: 0.2, metric: accuracy, every: 1, patience: 2}"
FEATURES = {  # by the alphabet, as pairs are named
    "balanced_softmax": "objective.loss=balanced_softmax",
    "bf16": "training.precision=bf16",
    "class_balanced": "training.sampling=class_balanced",
    "clip": "training.clip_grad=0.1",
    "cosine_momentum": "objective.momentum={kind: cosine, start: 0.9, end: 1.0}",
    "crt": "method=crt",
    "distill": "objective.distill={teachers: [cifar_resnet20.paco_digits_lt50], weight: 0.9, tau: 4.0}",
    "early_stopping": f"training.early_stopping={EARLY}",
    "ema": "training.ema={decay: 0.8}",
    "feature_transform": "objective.feature_transform={start_epoch: 0}",
    "frozen": "train_only=[]",
    "head_centers": "init={release: cifar_resnet20.paco_digits_lt50, head: centers}",
    "init": "init={release: cifar_resnet20.paco_digits_lt50}",
    "knn": "training.knn_every=1",
    "layer_decay": "optimizer.layer_decay=0.7",
    "ldam_drw": "method=ldam_drw",
    "logit_adjustment": "method=logit_adjustment",
    "lora": "adapt=lora",
    "mix": "objective.mix={mixup: 0.8, cutmix: 1.0}",
    "no_norm_decay": "optimizer.decay_norm_and_bias=false",
    "partial_labels": "data.partial_labels={kind: uniform, rate: 0.3}",
    "smoothing": "objective.label_smoothing=0.1",
    "subset": "data.subset={fraction: 0.5}",
}
KINDS = {
    "classify": "objective.loss=cross_entropy",
    "moco": "training.log_every=1",
    "paco": "training.log_every=1",
}


def planned(kind: str, *features: str) -> Recipe:
    """Return the recipe of the first training with these features, or raise the error that refuses it."""
    changes = [FEATURES[name] for name in features]
    return first_stage(recipe(kind, KINDS[kind], "training.batch_size=32", *changes))


def begun(first: Recipe) -> tuple[Stepper, Any]:
    """Return what trains a recipe, or raise the error of data or models that refuses it."""
    data = open_dataset(first.data, "train", None)
    training, validation = split_validation(data, first)
    objective = build_objective(first, data).train()
    require_batches(objective, len(training), first)
    loader = open_loader(training, first, CPU)
    stepper = Stepper(objective, first, loader.steps_per_epoch, CPU)
    if first.training.early_stopping or first.training.knn_every:
        Monitor(training, validation, first, stepper)
    return stepper, loader


def refused(kind: str) -> dict[str, str]:
    """Return why features, and pairs of those that are not, are refused; pairs by the recipe alone."""
    found: dict[str, str] = {}
    for size in (1, 2):
        allowed = [name for name in FEATURES if name not in found]
        for names in combinations(allowed, size):
            try:
                first = planned(kind, *names)
                if size == 1:
                    begun(first)
            except ZooError as error:
                found[" + ".join(names)] = str(error)
    return found


def sets(kind: str, refused: Collection[str]) -> list[list[str]]:
    """Return sets of features, no two of which are refused or set one key, that hold every other pair."""
    names = [name for name in sorted(FEATURES) if name not in refused]
    left = {pair for pair in combinations(names, 2) if " + ".join(pair) not in refused}
    together = {pair for pair in left if len({FEATURES[name].partition("=")[0] for name in pair}) == 2}
    found = []
    while left:
        chosen = list(next(iter(sorted(left))))
        for name in names:
            if all(tuple(sorted((name, other))) in together for other in chosen):
                chosen.append(name)
        left -= {*combinations(sorted(chosen), 2)}
        found.append(chosen)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_of_features_is_refused_by_a_key_or_trains(kind: str) -> None:
    found = refused(kind)
    for name, why in found.items():
        keys = {FEATURES[each].partition("=")[0] for each in name.split(" + ")}
        assert any(part in why for key in keys for part in key.split(".")), (name, why)
    assert sorted(found) == json.loads(REFUSED.read_text())[kind]
    for features in sets(kind, found):
        stepper, loader = begun(planned(kind, *features))
        for step, batch in enumerate(loader.stream(0, 2)):
            assert torch.isfinite(stepper(step, batch).loss), features
        assert all(bool(p.isfinite().all()) for p in stepper.parameters), features


if __name__ == "__main__":
    REFUSED.write_text(json.dumps({kind: sorted(refused(kind)) for kind in KINDS}, indent=1) + "\n")
