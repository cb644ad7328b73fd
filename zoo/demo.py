"""The main workflow on bundled data, end to end: pretrain, release, load back, evaluate, visualize."""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torch import nn

from zoo.data import open_dataset
from zoo.errors import TrainingError
from zoo.evaluation.encode import Encoder
from zoo.evaluation.light import metrics_table
from zoo.evaluation.measure import ProbeData, measure
from zoo.experiments import pretraining
from zoo.files import is_unused
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.training import build_objective, cpu_threads

MOCO = "cifar_resnet20.moco_v2_ft_digits"
PACO = "cifar_resnet20.paco_digits_lt50"
BALANCED_SOFTMAX = "cifar_resnet20.balanced_softmax_digits_lt50"
CLASSIFIERS = {
    "cross-entropy": "cifar_resnet20.ce_digits_lt50",
    "Balanced Softmax": BALANCED_SOFTMAX,
    "PaCo": PACO,
}


def run(out: Path, seed: int = 0, overrides: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Train and evaluate everything the demo shows, print it, and return the metrics of each method.

    Each training writes its release to a subfolder of `out`, which must be new or empty (else a
    TrainingError); `overrides` apply to every recipe.
    """
    if not is_unused(out):
        raise TrainingError(f'"{out}" is not an empty folder; remove it, or choose another with --out')
    began = time.monotonic()
    changes = [f"training.seed={seed}", *overrides]
    recipes = {name: Recipe.load(name, changes) for name in (MOCO, *CLASSIFIERS.values())}
    moco = recipes[MOCO]
    every, tail = (open_dataset(recipes[name].data, "train", None).class_counts for name in (MOCO, PACO))
    print(
        f"MoCo v2 + FT learns from {every.sum():,} digits without labels; cross-entropy, Balanced Softmax\n"
        f"and PaCo from {tail.sum()} long-tailed ones with labels, {tail.max()} of the most frequent class, "
        f"{tail.min()} of the rarest.",
        flush=True,
    )
    # the metrics of all trainings below are read back from their releases
    with ProcessPoolExecutor(1, get_context("spawn")) as second:  # one core for MoCo, one for the others
        longest = second.submit(pretraining.pretrain, moco, out=out / MOCO)
        made = {name: pretraining.pretrain(recipes[name], out=out / name) for name in CLASSIFIERS.values()}
        made[MOCO] = longest.result()
    unlabelled = {
        "raw pixels": probe(nn.Flatten(), moco),
        "random encoder": probe(random_encoder(moco), moco),
        "MoCo v2 + FT": _recorded(made[MOCO], "few_shot"),
    }
    rows = {words: _recorded(made[name], "classifier") for words, name in CLASSIFIERS.items()}
    folder = made[PACO].path
    few_shot = "\n".join(f"{name:16}  {row['accuracy']:.1f}" for name, row in unlabelled.items())
    print(f"""
Features learned without labels: top-1 accuracy in percent on the test digits, of a
linear classifier on five labelled digits of each class (mean of 20 draws)
{few_shot}

Long tail: top-1 accuracy in percent of the trained classifiers on the test digits;
classes with over 100 training images are many, under 20 few
{metrics_table(rows)}

Done in {time.monotonic() - began:.0f} s. Pictures of PaCo's training, features and centers are in
  {folder}
and one page for a browser shows what it learned:
  zoo diagnose {folder}

Load what you made:
  import timm, zoo
  encoder = zoo.load("{folder}").eval()  # a timm model
  classifier = zoo.load("{folder}", head="centers").eval()  # with the learned centers
  timm.create_model("local-dir:{folder}", pretrained=True)  # the same weights in plain timm""")
    return unlabelled | rows


def _recorded(made: Release, protocol: str) -> dict[str, Any]:
    return next(dict(e["metrics"]) for e in made.metrics["evaluations"] if e["protocol"] == protocol)


def random_encoder(recipe: Recipe) -> nn.Module:
    """Build the randomly initialised encoder that the recipe's training starts from."""
    return build_objective(recipe, open_dataset(recipe.data, "train", None)).encoder


def probe(model: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """Evaluate a baseline encoder by the recipe's first protocol other than "classifier"."""
    protocol = next(each for each in recipe.evaluation if each.protocol != "classifier")
    train_set, test_set = (open_dataset(recipe.data, split, None) for split in ("train", "test"))
    data = ProbeData(Encoder.of_recipe(model, recipe), train_set, test_set)
    with cpu_threads(recipe.training.threads):
        return dict(measure(protocol, data, test_set)["metrics"])
