"""The commands list and show, and how other commands print a release and its metrics."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from os.path import isdir, isfile
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from zoo import catalog, hub
from zoo.config import dump_yaml
from zoo.errors import RecipeError, one_line, rank_and_size
from zoo.files import read_text
from zoo.release.schema import PREFERRED

if TYPE_CHECKING:
    from zoo.recipe.keys import Key
    from zoo.release import Release

_WIDTH = 100
_TELLING = {"knn": ["k"], "few_shot": ["shots"], "retrieval": ["gallery"], "classifier": ["tau", "ensemble"]}


def list_(
    pattern: str = Argument("*", help="Shell pattern, or a part of the names."),
    shipped: bool = Option(False, "--shipped", help="Only weights that zoo.load has without a network."),
) -> None:
    """List weights, recipes with the published figure ([V] read, [S] quoted, [M] from memory), and sweeps."""
    models = catalog.list_models(pattern)
    recipes = [name for name in catalog.list_recipes(pattern) if name not in models]
    tables = [
        [("WEIGHTS", "OBJECTIVE", "TOP-1", "PARAMS", "INPUT"), *map(_weights_row, models)],
        [("RECIPE", "PUBLISHED"), *map(_recipe_row, recipes)],
        [("SWEEP", "QUESTION"), *map(_sweep_row, catalog.list_sweeps(pattern))],
    ]
    tables = [rows for rows in tables[: 1 if shipped else 3] if len(rows) > 1]
    if not tables:
        raise RecipeError(f'nothing matches "{pattern}"; "zoo list" shows all names')
    print("\n\n".join(in_columns(rows, _WIDTH) for rows in tables))


def _weights_row(name: str) -> tuple[str, ...]:
    """Return a shipped release's objective, accuracy, number of parameters and input size, without torch."""
    folder = catalog.release_path(name)
    assert folder is not None
    config, metrics = (json.loads((folder / f"{each}.json").read_bytes()) for each in ("config", "metrics"))
    found = {each["protocol"]: each["value"] for each in reversed(metrics["evaluations"])}
    protocol = next(filter(found.__contains__, PREFERRED))
    with (folder / "model.safetensors").open("rb") as file:  # eight bytes of length, then the header as JSON
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    weights = [key for key in header if not re.search("running_|num_batches_tracked|__metadata__", key)]
    count = sum(math.prod(header[key]["shape"]) for key in weights)
    count -= config["num_classes"] * (config["zoo"]["feature_dim"] + 1)  # of the encoder alone
    accuracy, size = f"{found[protocol]:.1f} {protocol}", config["pretrained_cfg"]["input_size"][-1]
    return name, config["zoo"]["objective"], accuracy, f"{count / 1e6:.1f} M", f"{size} px"


def _recipe_row(name: str) -> tuple[str, ...]:
    text = read_text(catalog.recipe_path(name), RecipeError).replace("\n#  ", "")  # a fact may span lines
    found = re.search(r"^# Target: +([\d.]+ [^;]+);[^[\n]*(\[[VSM]\])", text, re.MULTILINE)
    return name, " ".join(" ".join(found.groups()).split()) if found else "none"


def _sweep_row(name: str) -> tuple[str, ...]:
    text = read_text(catalog.sweep_path(name), RecipeError)
    return name, *re.findall("^question: (.*)", text, re.MULTILINE)


def in_columns(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return rows of cells in aligned columns, cut off at `width`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line[:width].rstrip() for line in lines)


def show(
    name: str = Argument(help='Weights, a recipe, a sweep, or a key of recipes (paco, lr; "keys": all).'),
    full: bool = Option(False, "--full", help="Also every value of a release's recipe."),
) -> None:
    """Show a release's metrics and the code that loads it; a recipe or sweep; or what a key means."""
    recipe, sweep = isfile(name) or name.endswith((".yaml", ".yml")), name in catalog.list_sweeps()
    if name in catalog.list_models() or isdir(name) or (set(name) & set("/:") and not recipe):
        _show_release(name, full)
    elif recipe or sweep or name in catalog.list_recipes():
        path = catalog.sweep_path(name) if sweep else catalog.recipe_path(name)
        text = read_text(path, RecipeError)
        if full:
            from zoo.recipe import Recipe

            text = Recipe.load(path).to_yaml()
        print(f"# {path}\n{text}", end="")
    else:
        from zoo.recipe.keys import find_keys

        try:
            keys = find_keys("" if name == "keys" else name)
        except RecipeError as error:
            if "Did you mean" not in str(error):
                catalog.recipe_path(name)  # its error names the nearest recipe
            raise RecipeError(f'{error} Nor is it weights, a recipe or a sweep: see "zoo list"') from None
        for key in keys:
            _print_key(key)


def _show_release(name: str, full: bool) -> None:
    from zoo.hub.fetch import local_folder
    from zoo.release import Release

    reference = hub.resolve(name)
    release = Release.at(local_folder(reference, weights=False))
    print(f'"{name}" is read as the {reference}')
    print_release(release, name)
    if full:
        print(f"\n{dump_yaml(release.recipe)}")


def _print_key(key: Key) -> None:
    """Print what a recipe's key means, its type and default."""
    default = "" if key.default is None else f"; default {key.default}"
    print(f"{key.name}: {key.kind}{default}" if key.kind else key.name)
    text = " ".join(key.text.split())
    print(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    "))


def print_release(release: Release, name: str | None = None) -> None:
    """Print a release's facts and metrics, and the code that loads it by `name`; on rank 0 only."""
    from zoo.release.provenance import describe_origins

    if rank_and_size()[0] > 0:
        return
    config, training, view = release.config, release.metrics["training"], release.preprocess
    shape = [len(release.class_names), config["zoo"]["feature_dim"]] if config["zoo"]["has_centers"] else []
    pixels = f"{view.input_size} pixels, crop {view.crop_pct:g}, {view.interpolation}"
    facts = {
        "encoder": f"{config['architecture']}, objective {config['zoo']['objective']}",
        "centers": shape and f"{shape[0]} classes x {shape[1]} features",
        "input": f"{pixels}, mean {view.mean}, std {view.std}",
        "licence": config["pretrained_cfg"]["license"],
        "origin": describe_origins(release.recipe),
        "trained": ", ".join(
            f"{key} {training[key]}" for key in ("epochs", "seconds", "hardware", "seed") if key in training
        ),
    }
    print(release.name, *(f"{key}: {one_line(str(fact))}" for key, fact in facts.items() if fact), sep="\n")
    print_evaluations(release.metrics["evaluations"])
    name = name or str(release.path)
    print(f'\nload it:\n  encoder = zoo.load("{name}").eval()  # images [B, 3, S, S], S = {view.input_size}')
    if shape:
        print(f'  classifier = zoo.load("{name}", head="centers").eval()  # to logits')
    print(f'  transform = zoo.open("{name}").transform()  # a PIL image to its input')


def print_evaluations(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of results for each data set."""
    from zoo.evaluation.light import metrics_table

    tables = dict[str, dict[str, Mapping[str, Any]]]()
    for entry in entries:
        label, rows = entry["protocol"], tables.setdefault(entry["data"], {})
        settings = entry.get("settings") or {}
        label += "".join(f" {key}={settings[key]}" for key in _TELLING.get(label, ()) if key in settings)
        while label in rows:
            label += " again"
        rows[label] = entry["metrics"]
    for data, rows in tables.items():
        print(f"{data}: percent, test split", metrics_table(rows, first="protocol"), sep="\n")
