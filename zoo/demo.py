"""The main job on embedded data, start to finish: pretrain, release, load back, measure, look."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from torch import nn

from zoo import hub, pretraining
from zoo.data import open_dataset
from zoo.errors import TrainingError
from zoo.evaluation.encode import Encoder
from zoo.evaluation.measure import ProbeData, measure
from zoo.evaluation.metrics import plain
from zoo.experiments.statistics import draw_numbers
from zoo.files import is_unused
from zoo.recipe import Recipe
from zoo.recipe.protocols import LinearProtocol
from zoo.release import Release
from zoo.release.schema import ACCURACIES
from zoo.training import build_objective, cpu_threads, pick_device
from zoo.training.facts import hardware

MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"
PACO = "cifar_resnet20.paco_digits_lt50"
CROSS_ENTROPY = "cifar_resnet20.ce_digits_lt50"
BALANCED_SOFTMAX = "cifar_resnet20.balanced_softmax_digits_lt50"


def run(out: Path, seed: int = 0, overrides: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Train and measure everything the demo shows, and print it.

    Args:
        out: new or empty folder; each training gets a release folder in it.
        seed: of every training.
        overrides: changes to every recipe, e.g. fewer epochs in a test.

    Returns:
        The printed table: metrics of each method.

    Raises:
        TrainingError: if `out` holds something already.
    """
    if not is_unused(out):
        raise TrainingError(f'"{out}" is not an empty folder; remove it, or choose another with --out')
    began = time.monotonic()
    console = Console()
    changes = [f"training.seed={seed}", *overrides]
    recipes = {name: Recipe.load(name, changes) for name in (MOCO, CROSS_ENTROPY, BALANCED_SOFTMAX, PACO)}
    with cpu_threads(recipes[MOCO].training.threads):
        _introduce(console, recipes[MOCO])
    made: dict[str, Release] = {}
    for name, recipe in recipes.items():
        pretraining.pretrain(recipe, out=out / name)
        made[name] = hub.open(out / name)  # everything below is read back from what was written
    rows = {
        "raw pixels": _probe(nn.Flatten(), recipes[MOCO]),
        "random encoder": _probe(_random_encoder(recipes[MOCO]), recipes[MOCO]),
        "MoCo v2 + FT": _recorded(made[MOCO], "linear"),
        "cross-entropy": _recorded(made[CROSS_ENTROPY], "classifier"),
        "Balanced Softmax": _recorded(made[BALANCED_SOFTMAX], "classifier"),
        "PaCo": _recorded(made[PACO], "classifier"),
    }
    shown = pd.DataFrame({"point": name, "seed": seed, **row} for name, row in rows.items())
    draw_numbers(shown.set_index(["point", "seed"])[list(ACCURACIES)], out / "accuracy.png")
    console.print()
    console.print("top-1 accuracy in percent, balanced test set", plain(rows), sep="\n", highlight=False)
    console.print(
        "The first three saw no labels before their linear probe; the last three are\n"
        "the trained classifiers themselves. Classes with over 100 training images are\n"
        "many, under 20 few."
    )
    _point_out(out, made[PACO], time.monotonic() - began)
    return rows


def _introduce(console: Console, recipe: Recipe) -> None:
    train_set, test_set = (open_dataset(recipe.data, split, None) for split in ("train", "test"))
    counts = train_set.class_counts
    console.print(
        f"[bold]Long-tailed digits[/bold]: {len(train_set)} training images, {counts.max()} of the most "
        f"frequent class,\n{counts.min()} of the rarest; {len(test_set)} test images, about as many of each "
        "class.\n"
        f"Four trainings of {recipe.training.epochs} epochs each on {hardware(pick_device('auto'))}:"
    )


def _recorded(made: Release, protocol: str) -> dict[str, Any]:
    metrics: dict[str, Any] = next(
        e["metrics"] for e in made.metrics["evaluations"] if e["protocol"] == protocol
    )
    return metrics


def _random_encoder(recipe: Recipe) -> nn.Module:
    """Build the encoder that the recipe's training starts from."""
    return build_objective(recipe, open_dataset(recipe.data, "train", None)).encoder


def _probe(model: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """Measure a baseline with the linear protocol that the recipe uses for its own encoder."""
    protocol = next(p for p in recipe.evaluation if isinstance(p, LinearProtocol))
    train_set, test_set = (open_dataset(recipe.data, split, None) for split in ("train", "test"))
    data = ProbeData(Encoder.of_recipe(model, recipe), train_set, test_set)
    with cpu_threads(recipe.training.threads):
        metrics: dict[str, Any] = measure(protocol, data, test_set)["metrics"]
    return metrics


def _point_out(out: Path, paco: Release, seconds: float) -> None:
    classes, features = paco.centers.weight.shape if paco.centers is not None else (0, 0)
    size = paco.preprocess.input_size
    folder = paco.path
    print(f"""
Done in {seconds:.0f} s. Pictures:
  {out / "accuracy.png"}
      accuracy by shot
  {folder / "features.png"}
      test features with the learned class centers
  {folder / "centers.png"}
      which classes the centers hold to be alike
  {folder / "curves.png"}, scores.png, balance.png
      how the training went: all curves, scores of pairs, gradients over the classes

See what it learned, in one page for a browser:
  zoo diagnose {folder}

Load what you made:
  import zoo
  encoder = zoo.load("{folder}").eval()
      # a timm model: [B, 3, {size}, {size}] -> features [B, {features}]
  classifier = zoo.load("{folder}", head="centers").eval()
      # the learned centers as its head: [B, {classes}]
  zoo.open("{folder}").centers
      # weight [{classes}, {features}], bias [{classes}], class_counts [{classes}]

  import timm, zoo  # the same weights in plain timm; zoo only names the architecture
  timm.create_model("local-dir:{folder}", pretrained=True)""")
