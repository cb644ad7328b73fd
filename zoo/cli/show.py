"""What the command line prints: the list of names, a release's facts, a table of results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoo import catalog
from zoo.config import load_yaml
from zoo.data.words import selection_words

if TYPE_CHECKING:
    from zoo.release import HubRelease, Release
    from zoo.release.names import Reading
    from zoo.release.push import Ready


def print_names(models: Iterable[str], recipes: Iterable[str], sweeps: Iterable[str] = ()) -> None:
    """Print one line for every shipped release, other recipe and sweep, in this order."""
    models, recipes = set(models), set(recipes)
    rows = [("NAME", "OBJECTIVE", "DATA", "TARGET", "RUN HERE", "WEIGHTS")]
    for name in [*sorted(models), *sorted(recipes - models)]:
        facts = _summary(name) if name in recipes else ("",) * 4
        rows.append((name, *facts, "shipped" if name in models else ""))
    rows += [(name, *_sweep_summary(name), "") for name in sorted(sweeps)]
    print_columns(rows)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns: plain lines, one a row, for people, grep and cut alike."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _summary(name: str) -> tuple[str, str, str, str]:
    """Objective, data, target and what was run, read without the schema: listing imports no torch."""
    path = catalog.recipe_path(name)
    text = catalog.recipe_text(path)
    header = catalog.recipe_header(text)
    recipe = load_yaml(catalog.recipe_sections(text, "data", "objective", "method"), path.name)
    target, _, source = header.get("Target", "").partition(";")
    # read in the authors' repository, or from memory; a text without a figure may speak of others' figures
    mark = None if target == "none" else re.search(r"\[[VM]\]", source)
    here = re.split("[:;]", header.get("Here", ""))[0]
    data = header.get("Data") or _data(recipe["data"])
    learned = _objective(recipe["objective"], recipe.get("method"))
    return learned, data, f"{target} {mark[0]}" if mark else target, here


def _sweep_summary(name: str) -> tuple[str, str, str, str]:
    """Return the same of a sweep: what its recipes learn, and what it varies in the place of a target."""
    path = catalog.sweep_path(name)
    text = catalog.recipe_text(path)
    sections = load_yaml(catalog.recipe_sections(text, "recipes", "set"), path.name)
    recipes = [_summary(recipe) for recipe in sections["recipes"]]
    varied = [key for key, values in sections["set"].items() if len(values) > 1]
    learned = ", ".join(dict.fromkeys(facts[0] for facts in recipes))
    here = re.split("[:;]", catalog.recipe_header(text).get("Here", ""))[0]
    return f"sweep of {learned}", recipes[0][1], f"over {', '.join(varied) or 'recipes'}", here


def _objective(section: Mapping[str, Any], method: Mapping[str, Any] | None) -> str:
    kind, loss = str(section["name"]), section.get("loss")
    if method:  # it decides the loss
        kind = str(method["name"])
    elif kind == "classify":  # named by its loss
        kind = loss if isinstance(loss, str) else str(section["loss"]["name"])
    elif loss is not None and loss["name"] != "info_nce":
        kind += f" {loss['name']}"
    return kind + (" + FT" if section.get("feature_transform") else "")


def _data(section: Mapping[str, Any]) -> str:
    source = section["source"]
    kind = str(source["kind"])
    parts = [{"parquet": f"{kind} {source.get('label')}", "hub": str(source.get("repo"))}.get(kind, kind)]
    parts += selection_words(section["long_tail"], section.get("subset"))
    partial = section.get("partial_labels")
    if partial:
        parts.append(f"{partial['kind']} candidates {partial.get('rate', '')}".rstrip())
    return ", ".join(parts)


def print_hub(releases: Iterable[HubRelease]) -> None:
    """Print one line for every release on the Hub."""
    rows = [("NAME", "OBJECTIVE", "ACCURACY", "DATA", "UPDATED", "")]
    for found in releases:
        updated = f"{found.updated:%Y-%m-%d}" if found.updated else ""
        visible = "private" if found.private else ""
        rows.append((found.repo_id, found.objective, found.accuracy, found.data, updated, visible))
    print_columns(rows)


def print_reading(name: str, reading: Reading) -> None:
    """Print how a name was read, and what else it could have meant."""
    print(f'"{name}" is read as the {reading}' + "".join(f"; {other}" for other in reading.others))


def print_release(release: Release) -> None:
    """Print a release's facts and figures."""
    zoo = release.config["zoo"]
    print(f"{release.name}  {release.path}")
    told = f"{len(release.class_names) or 'no'} classes"
    print(f"{release.config['architecture']}, objective {zoo['objective']}, {told}")
    if release.centers is not None:
        classes, features = release.centers.weight.shape
        print(f"centers: {classes} classes x {features} features")
    print(f"input: {_input_words(release)}")
    print(f"licence: {release.config['pretrained_cfg']['license']}")
    _print_origin(release.recipe)
    from zoo.release.format import snapshot_of

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


def _print_origin(recipe: Mapping[str, Any]) -> None:
    """Print what a release was made of, where it was not trained from random weights."""
    from zoo.release.format import start_of, teachers_of

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
    from zoo.hub_client import LOG_IN
    from zoo.release import hub
    from zoo.release.hub import manifest

    release, branch, contents = ready
    sizes = {name: manifest.size(content) for name, content in contents.items()}
    print(f"{release.name}  {release.path}\nthe release is fit to be published; a push would send")
    print(f"  to        {hub.address(repo_id)}, branch {branch}")
    print(f"  made      {'private' if private else 'public'}, if there is no such repository yet")
    print(f"  licence   {release.config['pretrained_cfg']['license']}")
    print(f"  token     {'found' if hub.has_token(None) else f'none found, the push needs one: {LOG_IN}'}")
    print(f"  files     {manifest.amount(sizes.values()).rstrip(',')}")
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
    print(f"  input     {_input_words(release)}")
    license, own = release.config["pretrained_cfg"]["license"], "; for weights of your own: --license ID"
    of = "" if license == "unknown" else f", that of {source['repository']}"
    print(f"  licence   {license}{of}{own}" if stated else f"  licence   {license}")


def print_evaluations(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of results for each data set."""
    from zoo.evaluation.printed import plain

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
    from zoo.release.card.metadata import stated_settings  # not for `zoo list`

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
