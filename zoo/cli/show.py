"""What the command line prints: names, a release's facts, what a key means, tables of results."""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo import catalog
from zoo.config import load_yaml
from zoo.release.evaluations import PREFERRED, stated_settings

if TYPE_CHECKING:
    from pathlib import Path

    from zoo.hub.push import Ready
    from zoo.recipe.keys import Key
    from zoo.release import Release


_NO_WEIGHTS = re.compile(r"running_(mean|var)$|num_batches_tracked$|__metadata__")
"""Names of BatchNorm's buffers, and of what is no tensor."""


def print_names(models: Iterable[str], recipes: Iterable[str], sweeps: Iterable[str] = ()) -> None:
    """Print a table each of shipped weights, recipes and sweeps, in lines of at most 100 characters."""
    models, recipes = {*models}, {*recipes}
    tables = (
        [("WEIGHTS", "OBJECTIVE", "TOP-1", "PARAMS", "INPUT")]
        + [
            (name, _summary(name)[0] if name in recipes else "", *_measured(folder))
            for name in sorted(models)
            if (folder := catalog.release_path(name)) is not None
        ],
        [("RECIPE", "OBJECTIVE", "PUBLISHED")]
        + [(name, *_summary(name)) for name in sorted(recipes - models)],
        [("SWEEP", "OBJECTIVES", "OVER")] + [(name, *_sweep_summary(name)) for name in sorted(sweeps)],
    )
    shown = [rows for rows in tables if len(rows) > 1]
    for number, rows in enumerate(shown):
        if number:
            print()
        room = (96 - max(len(name) for name, *_ in rows)) // 2  # of each of two columns behind the name
        print_columns([(name, *(_shorten(cell, room) for cell in cells)) for name, *cells in rows])


def _measured(folder: Path) -> tuple[str, str, str]:
    """Return a release's accuracy, number of parameters and input size, read without torch."""
    config, metrics = (json.loads((folder / f"{each}.json").read_bytes()) for each in ("config", "metrics"))
    found = {each["protocol"]: each["metrics"].get("accuracy") for each in reversed(metrics["evaluations"])}
    protocol = next((each for each in PREFERRED if found.get(each) is not None), None)
    by = "" if protocol == "classifier" else f" {protocol}"
    accuracy = f"{found[protocol]:.1f}{by}" if protocol else "-"
    # `release.headers` reads it with torch: eight bytes of length, then the header as JSON
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    shapes = [tensor["shape"] for key, tensor in header.items() if not _NO_WEIGHTS.search(key)]
    size = config["pretrained_cfg"]["input_size"][-1]
    return accuracy, f"{sum(map(math.prod, shapes)) / 1e6:.1f} M", f"{size} px"


def _shorten(text: str, width: int) -> str:
    """Return text of at most `width` characters, its end left out where it is longer."""
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns: plain lines, one a row, for people, grep and cut alike."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _summary(name: str) -> tuple[str, str]:
    """Return a recipe's objective and published figure, read without the schema: listing imports no torch."""
    path = catalog.recipe_path(name)
    text = catalog.recipe_text(path)
    recipe = load_yaml(catalog.recipe_sections(text, "objective", "method"), path.name)
    target, _, source = catalog.recipe_header(text).get("Target", "").partition(";")
    # read in the authors' repository, or from memory; a text without a figure may speak of others' figures
    mark = None if target == "none" else re.search(r"\[[VM]\]", source)
    learned = _objective(recipe["objective"], recipe.get("method"))
    return learned, f"{target} {mark[0]}" if mark else target


def _sweep_summary(name: str) -> tuple[str, str]:
    """Return what a sweep's recipes learn, and what it varies."""
    path = catalog.sweep_path(name)
    sections = load_yaml(catalog.recipe_sections(catalog.recipe_text(path), "recipes", "set"), path.name)
    varied = [key for key, values in sections["set"].items() if len(values) > 1]
    learned = ", ".join(dict.fromkeys(_summary(recipe)[0] for recipe in sections["recipes"]))
    return learned, ", ".join(varied) or "recipes"


def _objective(section: Mapping[str, Any], method: Mapping[str, Any] | None) -> str:
    kind, loss = str(section["name"]), section.get("loss")
    if method:  # it decides the loss
        kind = str(method["name"])
    elif kind == "classify":  # named by its loss
        loss = loss or "cross_entropy"  # the schema's default
        kind = loss if isinstance(loss, str) else str(loss["name"])
    elif loss is not None and loss["name"] != "info_nce":
        kind += f" {loss['name']}"
    return kind + (" + FT" if section.get("feature_transform") else "")


def print_release(release: Release) -> None:
    """Print a release's facts and figures."""
    from zoo.release.format import snapshot_of

    zoo, centers = release.config["zoo"], release.centers
    print(f"{release.name}  {release.path}")
    classes = f"{len(release.class_names) or 'no'} classes"
    print(f"{release.config['architecture']}, objective {zoo['objective']}, {classes}")
    if centers is not None:
        print(f"centers: {len(centers.weight)} classes x {centers.weight.shape[1]} features")
    print(f"input: {_input_words(release)}")
    print(f"licence: {release.config['pretrained_cfg']['license']}")
    _print_origin(release.recipe)
    training = release.metrics["training"]
    if {"epochs", "seconds", "hardware", "seed"} <= training.keys():  # not of a converted checkpoint
        reached = snapshot_of(training)
        snapshot = "" if reached is None else f" (a snapshot, {reached})"
        epochs = "1 epoch" if training["epochs"] == 1 else f"{training['epochs']} epochs"
        print(
            f"trained {epochs}{snapshot} in {training['seconds']:,.0f} s on "
            f"{training['hardware']}, seed {training['seed']}"
        )
    print_evaluations(release.metrics["evaluations"])


def print_loading(release: Release, name: str) -> None:
    """Print the lines that load a release by this name."""
    size = release.preprocess.input_size
    print(f'\nload it:\n  encoder = zoo.load("{name}").eval()  # images [B, 3, {size}, {size}] to features')
    if release.centers is not None:
        print(f'  classifier = zoo.load("{name}", head="centers").eval()  # to logits')
    print(f'  transform = zoo.open("{name}").transform()  # a PIL image to its input')


def print_centers(release: Release) -> None:
    """Print each class center: its training images, length, bias and nearest other class."""
    found = release.centers
    if found is None:
        return
    table = [("CLASS", "TRAINING IMAGES", "NORM", "BIAS", "NEAREST OTHER CLASS", "COSINE")]
    norms, biases, counts = found.weight.norm(dim=1), found.bias.tolist(), found.class_counts.tolist()
    alone = len(found.class_names) < 2
    cosines, others = ([0.0], [0]) if alone else (each.tolist() for each in found.nearest_other())
    for c, label in enumerate(found.class_names):
        count = f"{counts[c]:,}" if counts[c] >= 0 else "-"
        other = ("-", "-") if alone else (found.class_names[others[c]], f"{cosines[c]:.2f}")
        table.append((label, count, f"{norms[c]:.2f}", f"{biases[c]:+.2f}", *other))
    print()
    print_columns(table)


def print_key(key: Key, *, deep: bool) -> None:
    """Print what a recipe's key means, its type and default, and where `deep`, the keys inside."""
    default = "" if key.default is None else f"; default {key.default}"
    kind = f": {key.kind}{default}" if key.kind else ""
    print(_wrapped(f"{key.path if key.kind else key.name}{kind}", ""))
    print(_wrapped(key.text, "    "))
    if not deep:
        print(_wrapped(", ".join(each.name.rpartition(".")[2] for each in key.inside), "    "))
    elif key.inside and not key.inside[0].kind:  # one of several sections, each shown by its own name
        print(_wrapped(f"one of {', '.join(each.name for each in key.inside)}", "      "))
    else:
        for each in key.inside:
            print_key(each, deep=True)


def _wrapped(text: str, indent: str) -> str:
    width = min(max(shutil.get_terminal_size((110, 24)).columns, 60), 110)
    lines = (
        textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
        for line in text.split("\n")
    )
    return "\n".join(each for line in lines for each in line)


def _print_origin(recipe: Mapping[str, Any]) -> None:
    """Print what a release was made of, where it was not trained from random weights."""
    from zoo.release.provenance import start_of, teachers_of

    source, start = recipe.get("converted"), start_of(recipe)
    if isinstance(source, Mapping):  # what others wrote may be anything
        layout = f", in the layout of {source['repository']}" if source.get("repository") else ""
        print(f"converted from {_source_words(source)}{layout}")
    if start is not None:
        print(f"training started from {start}")
    if teachers := teachers_of(recipe):
        print(f"learned from the labels and {', '.join(teachers)}")


def _source_words(source: Mapping[str, Any]) -> str:
    """Say which file a conversion is of, as its recipe records it."""
    encoder, epoch = source.get("encoder"), source.get("epoch")
    parts = [source.get("file"), source.get("family"), encoder and f"{encoder} encoder"]
    parts += [] if epoch is None else [f"epoch {epoch}"]
    return ", ".join(str(part) for part in parts if part)


def _input_words(release: Release) -> str:
    preprocess = release.preprocess
    return (
        f"{preprocess.input_size} pixels, crop {preprocess.crop_pct:g}, "
        f"{preprocess.interpolation}, mean {preprocess.mean}, std {preprocess.std}"
    )


def print_dry_run(ready: Ready, repo_id: str, private: bool) -> None:
    """Print what a push would send where, and what it alone can find out."""
    from huggingface_hub import constants, get_token

    from zoo.hub.client import LOG_IN

    release, branch, contents = ready
    sizes = {
        name: len(content) if isinstance(content, bytes) else content.stat().st_size
        for name, content in contents.items()
    }
    print(f"{release.name}  {release.path}\nthe release is fit to be published; a push would send")
    print(f"  to        {constants.ENDPOINT}/{repo_id}, branch {branch}")
    print(f"  made      {'private' if private else 'public'}, if there is no such repository yet")
    print(f"  licence   {release.config['pretrained_cfg']['license']}")
    print(f"  token     {'found' if get_token() else f'none found, the push needs one: {LOG_IN}'}")
    print(f"  files     {len(sizes)}, {sum(sizes.values()) / 1e6:,.1f} MB")
    print_columns([(f"    {name}", f"{size:13,} bytes") for name, size in sizes.items()])
    print("nothing was sent, and the Hub was not asked what it holds already")


def print_conversion(release: Release, *, stated: bool, found: bool) -> None:
    """Print what a converted release has of its file, what was left out, and how images become its input.

    Args:
        release: the conversion.
        stated: whether its licence is the one that the family's repository states.
        found: whether its architecture is the one that the file tells, and not the user.
    """
    source = release.recipe["converted"]
    print(f"{release.name}  {release.path}")
    print(f"from {_source_words(source)}")
    print(f"  arch      {release.config['architecture']}" + (", as the file tells" if found else ""))
    for what, count in source["tensors"].items():
        print(f"  taken     {what}: {count} tensors")
    for what, keys in source["left_out"].items():
        print(f"  left out  {what}: {keys}")
    if source["label_order"] is not None:
        print(f"  classes   in {source['label_order']} order")
    print(f"  input     {_input_words(release)}")
    license, own = release.config["pretrained_cfg"]["license"], "; for weights of your own: --license ID"
    of = "" if license == "unknown" else f", that of {source['repository']}"
    print(f"  licence   {license}{of}{own}" if stated else f"  licence   {license}")
    print(f'\nload it:  zoo.load("{release.path}")')


def print_evaluations(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of results for each data set."""
    from zoo.evaluation.metrics import plain

    for data in dict.fromkeys(entry["data"] for entry in entries):
        for what, measured in (("top-1 accuracy", True), ("recall at k", False)):
            rows: dict[str, Mapping[str, Any]] = {}
            for entry in entries:
                if entry["data"] == data and ("accuracy" in entry["metrics"]) == measured:
                    label = _label(entry)
                    again = sum(name.split(" #")[0] == label for name in rows)  # another seed, other settings
                    rows[f"{label} #{again + 1}" if again else label] = entry["metrics"]
            if rows:
                print(f"{data}: {what} in percent, test split", plain(rows, first="protocol"), sep="\n")


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as `--set` takes them: `k=20, tau=0.07`."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def _label(entry: Mapping[str, Any]) -> str:
    """Name an entry by its protocol and the setting that tells its figures apart."""
    settings, protocol = stated_settings(entry), str(entry["protocol"])
    if protocol == "knn" and "k" in settings:
        return f"knn k={settings['k']}"
    if protocol == "classifier" and "tau" in settings:
        return f"classifier - {settings['tau']:g} log prior"
    if protocol == "few_shot" and "shots" in settings:
        mean = ", class mean" if settings.get("classifier") == "mean" else ""
        return f"few_shot n={settings['shots']}{mean}"
    if protocol == "semi_supervised" and "fraction" in settings:
        frozen = ", frozen" if settings.get("freeze_encoder") else ""
        return f"semi_supervised {100 * settings['fraction']:g} %{frozen}"
    if protocol == "retrieval" and settings.get("gallery") == "train":
        return "retrieval in train"
    return protocol
