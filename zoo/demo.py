"""The main job on embedded data, start to finish: pretrain, release, load back, measure, look."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from zoo import api, backbones, release
from zoo.data import open_dataset
from zoo.errors import TrainingError
from zoo.evaluation.measure import Encoded, measure
from zoo.evaluation.plots import plot_shot_accuracy
from zoo.evaluation.report import table
from zoo.seeding import derive_seed
from zoo.training import Recipe, pick_device
from zoo.training.recipe import LinearProtocol

MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"
PACO = "cifar_resnet20.paco_digits_lt50"
CROSS_ENTROPY = "cifar_resnet20.ce_digits_lt50"
BALANCED_SOFTMAX = "cifar_resnet20.balanced_softmax_digits_lt50"

ROWS = {
    CROSS_ENTROPY: "cross-entropy",
    BALANCED_SOFTMAX: "Balanced Softmax",
    PACO: "PaCo (ours to load)",
}


def run(out: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Train and measure everything the demo shows.

    Args:
        out: new or empty folder; each training gets a release folder in it.
        seed: of every training.

    Returns:
        The printed table: metrics of each method.

    Raises:
        TrainingError: if `out` holds something already.
    """
    if out.exists() and any(out.iterdir()):
        raise TrainingError(f'"{out}" is not empty; remove it, or choose another folder with --out')
    began = time.monotonic()
    console = Console()
    recipes = {name: Recipe.load(name, [f"training.seed={seed}"]) for name in (MOCO, PACO, CROSS_ENTROPY)}
    recipes[BALANCED_SOFTMAX] = Recipe.load(BALANCED_SOFTMAX, [f"training.seed={seed}"])
    first = recipes[MOCO]
    train_set = open_dataset(first.data, "train", None)
    counts = train_set.class_counts
    console.print(
        f"[bold]Long-tailed digits[/bold]: {len(train_set)} training images, {counts.max()} of the most frequent "
        f"class and {counts.min()} of the rarest; {len(open_dataset(first.data, 'test', None))} balanced test images.\n"
        f"Four trainings of {first.training.epochs} epochs each, on {api.hardware(pick_device('auto'))}:"
    )
    trained = {name: api.pretrain(recipe, out=out / name) for name, recipe in recipes.items()}
    loaded = {name: release.open(out / name) for name in trained}

    rows: dict[str, dict[str, Any]] = {
        "raw pixels": _probe(nn.Flatten(), first),
        "random encoder": _probe(_random_encoder(first), first),
        "MoCo v2 + FT": _metrics(loaded[MOCO], "linear"),
        "cross-entropy": _metrics(loaded[CROSS_ENTROPY], "classifier"),
        "Balanced Softmax": _metrics(loaded[BALANCED_SOFTMAX], "classifier"),
        "PaCo": _metrics(loaded[PACO], "classifier"),
    }
    plot_shot_accuracy(rows, out / "accuracy.png")
    console.print()
    console.print(table(rows, title="top-1 accuracy in percent on the balanced test set"))
    console.print(
        "The first three are linear probes on frozen features (no labels in pretraining); the last three are the\n"
        "trained classifiers themselves. Classes with > 100 training images are many, < 20 few.\n"
    )
    console.print(
        f"Done in {time.monotonic() - began:.0f} s. Pictures:\n"
        f"  {out / 'accuracy.png'}  accuracy by shot\n"
        f"  {out / PACO / 'features.png'}  test features and the learned class centers\n"
        f"  {out / PACO / 'curves.png'}  training curves\n\n"
        "Load what you made:\n"
    )
    print(
        "  import zoo\n"
        f'  encoder = zoo.load("{out / PACO}")                     # a timm model, [B, 3, 32, 32] -> [B, 64]\n'
        f'  classifier = zoo.load("{out / PACO}", head="centers")  # with the learned centers as its head\n'
        f'  centers = zoo.open("{out / PACO}").centers             # weight [10, 64], bias [10]\n\n'
        "  import timm                                            # the same weights in plain timm\n"
        f'  timm.create_model("local-dir:{out / PACO}", pretrained=True)'
    )
    return rows


def _metrics(made: release.Release, protocol: str) -> dict[str, Any]:
    return next(e["metrics"] for e in made.metrics["evaluations"] if e["protocol"] == protocol)


def _random_encoder(recipe: Recipe) -> nn.Module:
    """Build the encoder that the recipe's training starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("weights", recipe.training.seed))
        return backbones.create(recipe.backbone.arch, **recipe.backbone.args)


def _probe(model: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """Measure a baseline with the linear protocol that the recipe uses for its own encoder."""
    protocol = next(p for p in recipe.evaluation if isinstance(p, LinearProtocol))
    encoded = Encoded(
        model,
        open_dataset(recipe.data, "train", None),
        open_dataset(recipe.data, "test", None),
        view=recipe.views.eval,
        mean=recipe.data.mean,
        std=recipe.data.std,
        device="cpu",
    )
    metrics: dict[str, Any] = measure(protocol, encoded, None)["metrics"]
    return metrics
