"""What the command line prints: names, a release's facts, keys of recipes, tables of results."""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo import catalog
from zoo.config import dump_yaml, load_yaml
from zoo.release.evaluations import PREFERRED, stated_settings

if TYPE_CHECKING:
    from zoo.hub.push import Ready
    from zoo.recipe.keys import Key
    from zoo.release import Release


_NO_PARAMETER = re.compile(r"running_(mean|var)$|num_batches_tracked$|__metadata__")
"""Keys of a weights file that are BatchNorm's buffers or no tensor."""

_TELLING = {
    "knn": "k",
    "classifier": "tau",
    "few_shot": "shots",
    "semi_supervised": "fraction",
    "retrieval": "gallery",
}
"""The setting by which figures of a protocol are told apart."""


def print_names(models: Iterable[str], recipes: Iterable[str], sweeps: Iterable[str]) -> None:
    """Print a table each of shipped weights, recipes and sweeps, at most 100 columns wide."""
    models, recipes = {*models}, {*recipes}
    weights: list[tuple[str, ...]] = [("WEIGHTS", "OBJECTIVE", "TOP-1", "PARAMS", "INPUT")]
    weights += [
        (name, _summary(name)[0] if name in recipes else "", *_measured(name)) for name in sorted(models)
    ]
    others: list[tuple[str, ...]] = [("RECIPE", "OBJECTIVE", "PUBLISHED")]
    others += [(name, *_summary(name)) for name in sorted(recipes - models)]
    varied: list[tuple[str, ...]] = [("SWEEP", "OBJECTIVES", "OVER")]
    varied += [(name, *_sweep_summary(name)) for name in sorted(sweeps)]
    for number, rows in enumerate(rows for rows in (weights, others, varied) if len(rows) > 1):
        if number:
            print()
        room = (96 - max(len(name) for name, *_ in rows)) // 2
        print_columns([(name, *(_truncate(cell, room) for cell in cells)) for name, *cells in rows])


def _measured(name: str) -> tuple[str, str, str]:
    """Return a shipped release's accuracy, number of parameters and input size, without importing torch."""
    folder = catalog.release_path(name)
    assert folder is not None
    config, metrics = (json.loads((folder / f"{each}.json").read_bytes()) for each in ("config", "metrics"))
    found = {each["protocol"]: each["metrics"].get("accuracy") for each in reversed(metrics["evaluations"])}
    protocol = next((each for each in PREFERRED if found.get(each) is not None), None)
    by = "" if protocol == "classifier" else f" {protocol}"
    accuracy = f"{found[protocol]:.1f}{by}" if protocol else "-"
    with (folder / "model.safetensors").open("rb") as file:  # eight bytes of length, then the header as JSON
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = [tensor["shape"] for key, tensor in header.items() if not _NO_PARAMETER.search(key)]
    size = config["pretrained_cfg"]["input_size"][-1]
    return accuracy, f"{sum(map(math.prod, shapes)) / 1e6:.1f} M", f"{size} px"


def _truncate(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _summary(name: str) -> tuple[str, str]:
    """Return a recipe's objective and published figure, without the schema, which imports torch."""
    path = catalog.recipe_path(name)
    text = catalog.recipe_text(path)
    recipe = load_yaml(catalog.recipe_sections(text, "objective", "method"), path.name)
    target, _, source = catalog.recipe_header(text).get("Target", "").partition(";")
    mark = None if target == "none" else re.search(r"\[[VM]\]", source)
    learned = _objective(recipe["objective"], recipe.get("method"))
    return learned, f"{target} {mark[0]}" if mark else target


def _sweep_summary(name: str) -> tuple[str, str]:
    """Return a sweep's objectives, and the keys that it varies."""
    path = catalog.sweep_path(name)
    sections = load_yaml(catalog.recipe_sections(catalog.recipe_text(path), "recipes", "set"), path.name)
    varied = [key for key, values in sections["set"].items() if len(values) > 1]
    objectives = ", ".join(dict.fromkeys(_summary(recipe)[0] for recipe in sections["recipes"]))
    return objectives, ", ".join(varied) or "recipes"


def _objective(section: Mapping[str, Any], method: Mapping[str, Any] | None) -> str:
    """Name an objective; a classifier by its long-tailed method or its loss."""
    kind, loss = str(section["name"]), section.get("loss")
    loss_name = loss if isinstance(loss, str) else loss and str(loss["name"])
    if method:
        kind = str(method["name"])
    elif kind == "classify":
        kind = loss_name or "cross_entropy"
    elif loss_name not in (None, "info_nce"):
        kind += f" {loss_name}"
    return kind + (" + FT" if section.get("feature_transform") else "")


def print_release(release: Release) -> None:
    """Print a release's facts and figures."""
    from zoo.release.format import snapshot_of
    from zoo.release.provenance import start_of, teachers_of

    config, recipe, training = release.config, release.recipe, release.metrics["training"]
    print(f"{release.name}  {release.path}")
    classes = f"{len(release.class_names) or 'no'} classes"
    print(f"{config['architecture']}, objective {config['zoo']['objective']}, {classes}")
    if (centers := release.centers) is not None:
        print(f"centers: {len(centers.weight)} classes x {centers.weight.shape[1]} features")
    print(f"input: {_input(release)}")
    print(f"licence: {config['pretrained_cfg']['license']}")
    if isinstance(source := recipe.get("converted"), Mapping):
        layout = f", in the layout of {source['repository']}" if source.get("repository") else ""
        print(f"converted from {source.get('file')}{layout}")
    if (start := start_of(recipe)) is not None:
        print(f"training started from {start}")
    if teachers := teachers_of(recipe):
        print(f"teachers: {', '.join(teachers)}")
    if {"epochs", "seconds", "hardware", "seed"} <= training.keys():  # not of a converted checkpoint
        reached = snapshot_of(training)
        epochs = f"{training['epochs']} epoch(s)" + (f" (a snapshot, {reached})" if reached else "")
        took = f"{training['seconds']:,.0f} s on {training['hardware']}"
        print(f"trained {epochs} in {took}, seed {training['seed']}")
    print_evaluations(release.metrics["evaluations"])


def print_loading(release: Release, name: str) -> None:
    """Print the lines that load a release by this name."""
    size = release.preprocess.input_size
    print(f'\nload it:\n  encoder = zoo.load("{name}").eval()  # images [B, 3, {size}, {size}] to features')
    if release.centers is not None:
        print(f'  classifier = zoo.load("{name}", head="centers").eval()  # to logits')
    print(f'  transform = zoo.open("{name}").transform()  # a PIL image to its input')


def print_centers(release: Release) -> None:
    """Print each class center: its training images, norm, bias and the most similar other class."""
    centers = release.centers
    if centers is None or len(release.class_names) < 2:
        return
    rows = [("CLASS", "TRAINING IMAGES", "NORM", "BIAS", "NEAREST OTHER CLASS", "COSINE")]
    cosines, others = (each.tolist() for each in centers.nearest_other())
    for c, label in enumerate(release.class_names):
        count = int(centers.class_counts[c])
        norm, bias = f"{centers.weight[c].norm():.2f}", f"{centers.bias[c]:+.2f}"
        nearest = release.class_names[others[c]]
        rows.append((label, f"{count:,}" if count >= 0 else "-", norm, bias, nearest, f"{cosines[c]:.2f}"))
    print()
    print_columns(rows)


def print_key(key: Key) -> None:
    """Print what a recipe's key means, its type and default."""
    default = "" if key.default is None else f"; default {key.default}"
    _print_wrapped(f"{key.name}: {key.kind}{default}" if key.kind else key.name, "")
    _print_wrapped(" ".join(key.text.split()), "    ")


def _print_wrapped(text: str, indent: str) -> None:
    width = min(max(shutil.get_terminal_size((110, 24)).columns, 60), 110)
    for line in text.split("\n"):
        print(
            textwrap.fill(
                line, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False
            )
        )


def _input(release: Release) -> str:
    given = release.preprocess
    crop = f"{given.input_size} pixels, crop {given.crop_pct:g}, {given.interpolation}"
    return f"{crop}, mean {given.mean}, std {given.std}"


def print_dry_run(ready: Ready, repo_id: str, private: bool) -> None:
    """Print what a push would send where."""
    from huggingface_hub import constants, get_token

    release, branch, contents = ready
    visibility = "private" if private else "public"
    print(f"{release.name}  {release.path}\nfit to be published; a push would send to")
    print(f"{constants.ENDPOINT}/{repo_id}, branch {branch} ({visibility}, if it is created)")
    print(f"licence {release.config['pretrained_cfg']['license']}")
    print(f"token {'found' if get_token() else 'missing: log in with hf auth login'}")
    for name, content in contents.items():
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        print(f"  {name:22} {size:13,} bytes")
    print("nothing was sent")


def print_conversion(release: Release) -> None:
    """Print what a converted release has of its file, what was left out, and how images become its input."""
    print(f"{release.name}  {release.path}")
    print(f"architecture {release.config['architecture']}; input: {_input(release)}")
    print(f"licence: {release.config['pretrained_cfg']['license']} (--license ID for weights of your own)")
    print(dump_yaml({"converted": release.recipe["converted"]}), end="")
    print(f'\nload it:  zoo.load("{release.path}")')


def print_evaluations(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of results for each data set."""
    from zoo.evaluation.metrics import plain

    for data in dict.fromkeys(entry["data"] for entry in entries):
        for title, by_accuracy in (("top-1 accuracy", True), ("recall at k", False)):
            rows: dict[str, Mapping[str, Any]] = {}
            for entry in entries:
                if entry["data"] == data and ("accuracy" in entry["metrics"]) == by_accuracy:
                    label = _label(entry)
                    same = sum(name.split(" #")[0] == label for name in rows)  # another seed, other settings
                    rows[f"{label} #{same + 1}" if same else label] = entry["metrics"]
            if rows:
                print(f"{data}: {title} in percent, test split", plain(rows, first="protocol"), sep="\n")


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as `--set` takes them: `k=20, tau=0.07`."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def _label(entry: Mapping[str, Any]) -> str:
    """Name an entry by its protocol and the setting that tells its figures apart: `knn k=20`."""
    settings, protocol = stated_settings(entry), str(entry["protocol"])
    key = _TELLING.get(protocol)
    return f"{protocol} {key}={settings[key]}" if key in settings else protocol
