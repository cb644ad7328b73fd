"""The model card, `README.md`, of `card.md.j2`: it states no number that the release's own files do not hold.

jinja2, which torch brings, is all that writing one needs beside huggingface_hub.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from zoo import backbones
from zoo.config import is_number
from zoo.errors import ReleaseError, capital
from zoo.markdown import markdown_table
from zoo.release import format, licenses
from zoo.release.evaluations import ACCURACIES, in_order, metric_title, split_words, stated_settings
from zoo.release.schema import LIBRARY

# What stands between these lines is the user's, and survives when evaluations or pictures are added.
_NOTES_BEGIN = "<!-- Notes of your own go below this line: they stay when zoo writes this card again. -->"
_NOTES_END = "<!-- End of your notes; zoo writes everything outside them anew. -->"
_ADDRESS = re.compile(r'^release = zoo\.open\("([^"]+)"\)', re.MULTILINE)  # every card has it
NOTES = re.compile(f"({re.escape(_NOTES_BEGIN)}\n)(.*?)({re.escape(_NOTES_END)})", re.DOTALL)
"""The notes of a card's text, group 2, between their marks."""
_ANEW = "zoo.open(FOLDER).render_card() writes the card anew; it keeps the notes between its marks"

# The Hub's data sets of the sources that are one.
_HUB_DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
}
# What to cite from `citations.bib`, by the name of an objective that compares images with each other.
_PAPERS = {
    "bcl": ("zhu2022bcl",),
    "moco": ("he2020moco", "chen2020mocov2"),
    "moco_v3": ("chen2021mocov3",),
    "simclr": ("chen2020simclr",),
    "sup_con": ("khosla2020supcon", "he2020moco"),
    "paco": ("cui2021paco",),
    "gpaco": ("cui2022gpaco",),
    "pico": ("wang2022pico",),
    "margin": ("hadsell2006margin",),
}
# The same by the name of a part of an objective, a loss, or a long-tailed method.
_PAPERS_OF_PARTS = {
    "feature_transform": "zhu2021ft",
    "distill": "hinton2015distillation",
    "hard_contrastive": "wang2021behaviour",
    "simple": "wang2021behaviour",
    "hard_simple": "wang2021behaviour",
    "balanced_softmax": "ren2020balanced",
    "logit_adjustment": "menon2021logit",
    "post_hoc_logit_adjustment": "menon2021logit",
    "ldam": "cao2019ldam",
    "ldam_drw": "cao2019ldam",
    "crt": "kang2020decoupling",
    "tau_normalized": "kang2020decoupling",
    "lws": "kang2020decoupling",
}


def render(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the card of the release in `folder`, with the notes that a user wrote into the one there.

    Raises:
        ReleaseError: when a file that the card is made of is missing or damaged.
    """
    metrics, recipe = format.read_metrics(folder), format.read_recipe(folder)
    about, evaluations, example = config["zoo"], metrics["evaluations"], metrics.get("example")
    objective, loss, _ = _parts(recipe)
    counts = about["dataset"].get("class_counts")
    pictures = [file.stem for file in folder.glob(format.PICTURES) if format.PICTURE.fullmatch(file.name)]
    shown = [(name, f"{100 * share:.1f}") for name, share in example["top"].items()] if example else []
    body = _template().render(
        about=about,
        arguments=", ".join(f"{key}={value!r}" for key, value in config["model_args"].items()),
        cfg=config["pretrained_cfg"],
        config=config,
        counts=counts,
        data_facts=_facts_of_data(about["dataset"]),
        example=example,
        example_file=format.EXAMPLE,
        example_table=markdown_table(("Class", "Probability (%)"), shown),
        level=counts is not None and counts["smallest"] == counts["largest"],
        measured={name for each in evaluations if "accuracy" in each["metrics"] for name in each["metrics"]},
        notes=f"{_NOTES_BEGIN}\n{_notes(folder / format.CARD)}{_NOTES_END}",
        papers=bibtex(about["objective"], recipe),
        pictures=sorted(stem for stem in pictures if not (example and f"{stem}.png" == format.EXAMPLE)),
        prior=loss == "balanced_softmax" or objective.get("name") == "bcl" or objective.get("rebalance"),
        protocols={entry["protocol"] for entry in evaluations}
        | {f"{e['protocol']} with tau" for e in evaluations if "tau" in (e.get("settings") or {})},
        recipe_text=format.read_text(folder / format.RECIPE).rstrip(),
        repo=f"ORG/{about['name']}",  # where it will be is said by `addressed`
        run_facts=_facts_of_run(metrics["training"]),
        shared=any(entry.get("shared_images") for entry in evaluations),
        snapshot=format.snapshot_of(metrics["training"]),
        start=format.start_of(recipe),
        stock=not backbones.is_own(config["architecture"]),
        tables=_tables(evaluations),
        teachers=format.teachers_of(recipe),
        top=min(5, len(config.get("label_names") or about["class_names"])),
        training=metrics["training"],
        untold=", ".join(dict.fromkeys(e["data"] for e in evaluations if e.get("train_set", ()) is None)),
    )
    return str(ModelCard(f"---\n{_metadata(config, recipe, metrics).to_yaml()}\n---\n\n{body.rstrip()}\n"))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("zoo.release", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown; the Hub cleans what it makes of it
    )
    return environment.get_template("card.md.j2")


def addressed(card: str, repo_id: str) -> str:
    """Return the card as it stands in the repository `repo_id`: its code loads from there.

    The address in it may be a placeholder, or that of the repository that it was pulled from.
    """
    found = _ADDRESS.search(card)
    if found is None:
        return card
    address = re.compile(rf'("(?:hf-hub:)?|https://huggingface\.co/){re.escape(found[1])}(?="|/resolve/)')
    return address.sub(lambda old: f"{old[1]}{repo_id}", card)


def _notes(card: Path) -> str:
    """Return what a user wrote between the marks of an earlier card, or ''."""
    found = NOTES.search(format.read_text(card)) if card.is_file() else None
    return found[2] if found else ""


def check_card(folder: Path, config: Mapping[str, Any]) -> None:
    """Make sure that the card's metadata, its model-index above all, say what the release's own files say.

    Raises:
        ReleaseError: naming the card, what is wrong and what was measured.
    """
    file = folder / format.CARD
    licenses.check(config["pretrained_cfg"]["license"], f"{folder / format.CONFIG}: pretrained_cfg.license")
    try:
        found = dict(ModelCard(format.read_text(file)).data.to_dict())  # type: ignore[no-untyped-call]
        results = _flat(found)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise ReleaseError(f"{file}: metadata that the Hub does not take: {problem}. {_ANEW}") from None
    metadata = _metadata(config, format.read_recipe(folder), format.read_metrics(folder))
    expected = dict(metadata.to_dict())  # type: ignore[no-untyped-call]
    for key in ("library_name", "license", "license_name", "pipeline_tag", "datasets", "base_model"):
        if found.get(key) != expected.get(key):
            mend = _relicensing(found, folder) if key.startswith("license") else _ANEW
            raise ReleaseError(
                f"{file}: {key}: found {found.get(key)!r}, expected {expected.get(key)!r}. {mend}"
            )
    if LIBRARY not in (found.get("tags") or []):
        raise ReleaseError(
            f'{file}: tags: found {found.get("tags")}, expected "{LIBRARY}" among them. {_ANEW}'
        )
    recorded = _flat(expected)
    for each in [*results, *recorded]:
        if results.get(each) != recorded.get(each):
            said, measured = results.get(each, "nothing"), recorded.get(each, "nothing")
            raise ReleaseError(
                f'{file}: model-index: {each[3]} of "{each[1]}" on {each[0]}: found {said}, '
                f"but {format.METRICS} has {measured}. {_ANEW}"
            )


def _relicensing(found: Mapping[str, Any], folder: Path) -> str:
    """Say how the release gets the licence that somebody wrote into its card."""
    said = str(found.get("license_name") or found.get("license") or "ID")
    return (
        f"{format.CONFIG} records the licence. To set another one: zoo push {shlex.quote(str(folder))} "
        f'ORG/NAME --license {shlex.quote(said)}, or in Python zoo.open("{folder}").with_license("{said}"); '
        "both write the card anew, but for the notes between its marks"
    )


def _flat(data: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return a model-index as value by data, protocol with settings, split and metric."""
    return {
        (*(str(result["dataset"].get(key)) for key in ("name", "config", "split")), str(metric["type"])): (
            metric["value"]
        )
        for model in data.get("model-index") or []
        for result in model["results"]
        for metric in result["metrics"]
    }


def _metadata(
    config: Mapping[str, Any], recipe: Mapping[str, Any], metrics: Mapping[str, Any]
) -> ModelCardData:
    """Return the card's metadata; its model-index holds the numbers of `metrics`, to two decimals."""
    zoo = config["zoo"]
    task = "image-classification" if config["num_classes"] else "image-feature-extraction"
    dataset, start = hub_dataset(zoo["dataset"]), _on_hub(format.start_of(recipe))
    bases = [*dict.fromkeys(filter(None, (start, *map(_on_hub, format.teachers_of(recipe)))))]
    stock = not backbones.is_own(config["architecture"])
    license, license_name = licenses.on_hub(config["pretrained_cfg"]["license"])
    data = ModelCardData(
        license=license,
        license_name=license_name,
        library_name="timm" if stock else LIBRARY,
        pipeline_tag=task,
        # `zoo list --hub` takes the tag after the library's for the objective
        tags=[task, *["timm", "transformers"] * stock, LIBRARY, *_tags(zoo["objective"], recipe)],
        datasets=[dataset] if dataset else None,
        base_model=start if bases == [start] else bases or None,
        model_name=zoo["name"],
        eval_results=list(_results(metrics["evaluations"])) or None,
    )
    if start:
        data["base_model_relation"] = "finetune"
    if metrics.get("example"):
        source = f"https://huggingface.co/ORG/{zoo['name']}/resolve/main/{format.EXAMPLE}"
        data["widget"] = [{"src": source, "example_title": "Example"}]
    return data


def hub_dataset(dataset: Mapping[str, Any]) -> str | None:
    """Return the Hub's name of the training data, if it is known there."""
    names = (str(dataset.get("source")), *str(dataset.get("name")).split()[:1])
    return dataset.get("hub_id") or next(
        (_HUB_DATASETS[name] for name in names if name in _HUB_DATASETS), None
    )


def _on_hub(name: str | None) -> str | None:
    """Return the repository of weights that a recipe names, where they are on the Hub."""
    kind, _, rest = (name or "").partition(":")
    if kind == "timm":
        return f"timm/{rest}"
    return rest.partition("@")[0] if kind in ("hf-hub", "hf_hub") else None


def _parts(recipe: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None, str | None]:
    """Return a recipe's objective, and the names of its loss and its method."""
    objective = recipe.get("objective") or {}
    given = (objective.get("loss"), recipe.get("method"))
    loss, method = (each.get("name") if isinstance(each, Mapping) else each for each in given)
    return objective, loss, method


def _tags(name: str, recipe: Mapping[str, Any]) -> list[str]:
    """Return tags of what the training did, its objective first."""
    objective, loss, method = _parts(recipe)
    return [
        *[name] * (name != "unknown"),
        *["contrastive-learning"] * (name in _PAPERS),
        *["long-tailed-recognition"] * bool((recipe.get("data") or {}).get("long_tail")),
        *["knowledge-distillation"] * bool(objective.get("distill")),
        *(part.replace("_", "-") for part in (loss, method) if isinstance(part, str)),
    ]


def bibtex(name: str, recipe: Mapping[str, Any]) -> str:
    """Return the BibTeX entries of the methods that a recipe uses, or '' when it uses none with a paper.

    Args:
        name: of the objective.
        recipe: plain.
    """
    objective, loss, method = _parts(recipe)
    parts = [key for key in ("feature_transform", "distill") if objective.get(key)] + [loss, method]
    keys = [*_PAPERS.get(name, ()), *(_PAPERS_OF_PARTS[part] for part in parts if part in _PAPERS_OF_PARTS)]
    text = files("zoo.release").joinpath("citations.bib").read_text(encoding="utf-8")
    entries = re.finditer(r"@\w+\{(\w+),.*?^\}", text, re.DOTALL | re.MULTILINE)
    by_key = {found[1]: found[0] for found in entries}
    return "\n\n".join(by_key[key] for key in dict.fromkeys(keys))


def _results(evaluations: Sequence[Mapping[str, Any]]) -> Iterator[EvalResult]:
    for entry in evaluations:
        settings = "; ".join(_facts({**stated_settings(entry), "seed": entry.get("seed")}))
        task = "image-classification" if "accuracy" in entry["metrics"] else "image-feature-extraction"
        for name, value in entry["metrics"].items():
            title = metric_title(name)
            if title is None or not is_number(value):
                continue
            yield EvalResult(
                task_type=task,
                dataset_type=hub_dataset(entry.get("test_set") or {}) or entry["data"],
                dataset_name=entry["data"],
                # Results that share task, data, config and split would be merged into one.
                dataset_config=f"{entry['protocol']} ({settings})" if settings else entry["protocol"],
                dataset_split=split_words(entry),
                metric_type=name,
                # The Hub shows this name beside the value, and not the configuration.
                metric_name=f"{title}, {entry['protocol']} (%)",
                metric_value=round(value, 2),
            )


def _tables(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return tables with their titles, every evaluation a row with its protocol, data and split."""
    classified = [entry for entry in evaluations if "accuracy" in entry["metrics"]]
    others = [entry for entry in evaluations if "accuracy" not in entry["metrics"]]
    found = []
    for title, entries in (("Top-1 accuracies.", classified), ("Retrieval.", others)):
        names = in_order(name for entry in entries for name in entry["metrics"])
        if title.startswith("Top-1"):
            names = [name for name in names if name in (*ACCURACIES, "calibration_error")]
        head = ["Protocol", "Data", "Split", *(f"{metric_title(name)} (%)" for name in names), "Settings"]
        rows = [
            [
                *(entry["protocol"], entry["data"], split_words(entry)),
                *(_percent(entry["metrics"], name) for name in names),
                "; ".join(_facts(stated_settings(entry))),
            ]
            for entry in entries
        ]
        found += [(title, markdown_table(head, rows, left=(0, 1, 2, len(head) - 1)))] if entries else []
    return found


def _percent(metrics: Mapping[str, Any], name: str) -> str:
    value, interval = metrics.get(name), metrics.get(f"{name}_interval")
    if not is_number(value):
        return ""
    return f"{value:.2f} ± {interval:.2f}" if is_number(interval) else f"{value:.2f}"


def _facts_of_data(dataset: Mapping[str, Any]) -> list[str]:
    """The training data in a line, and what that line does not say in lines of its own."""
    rest = dict(dataset)
    line = f"Data: {rest.pop('name', 'not recorded')}"
    if "split" in rest:
        line += f", {rest.pop('split')} split"
    if {"num_images", "num_classes"} <= rest.keys():
        images, classes = rest.pop("num_images"), rest.pop("num_classes")
        line += f", {images:,} images " + (f"of {classes} classes" if classes else "without classes")
    if counts := rest.pop("class_counts", None):
        most, least = counts["largest"], counts["smallest"]
        line += (
            f", {most:,} of each" if most == least else f", from {most:,} down to {least:,} images a class"
        )
    if "sha256" in rest:
        rest["SHA-256 of the selected images' names and labels"] = rest.pop("sha256")
    return [line, *map(capital, _facts(rest))]


def _facts_of_run(training: Mapping[str, Any]) -> list[str]:
    """How long it ran on what, in a line, and what that line does not say in lines of its own."""
    rest = {key: fact for key, fact in training.items() if key not in ("snapshot", "versions")}
    rows = []
    if {"epochs", "steps", "images", "seconds", "images_per_second", "hardware"} <= rest.keys():
        epochs, steps, images = (rest.pop(key) for key in ("epochs", "steps", "images"))
        seconds, rate, hardware = (rest.pop(key) for key in ("seconds", "images_per_second", "hardware"))
        rows.append(
            f"Run: {epochs:,} epochs, {steps:,} steps, {images:,} images in {seconds:,.1f} s "
            f"({rate:,.1f} images/s) on {hardware}"
        )
    rows += map(capital, _facts(rest))
    if versions := training.get("versions"):
        rows.append("Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return rows


def _facts(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield `name: value` for every plain value in nested `data`; long lists are left out."""
    for key, value in data.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _facts(value, f"{name} ")
        elif isinstance(value, list | tuple):
            if len(value) <= 8:
                yield f"{name}: {', '.join(map(str, value))}"
        elif value is not None:
            yield f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}"
