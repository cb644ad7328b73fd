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
from zoo.markdown import escaped, markdown_table
from zoo.release import format, provenance
from zoo.release.evaluations import in_order, metric_title, split_words, stated_settings
from zoo.release.schema import LIBRARY

# What stands between these lines is the user's, and survives when evaluations or pictures are added.
_NOTES_BEGIN = "<!-- Notes of your own go below this line: they stay when zoo writes this card again. -->"
_NOTES_END = "<!-- End of your notes; zoo writes everything outside them anew. -->"
_ADDRESS = re.compile(r'^release = zoo\.open\("([^"]+)"\)', re.MULTILINE)  # every card has it
NOTES = re.compile(f"({re.escape(_NOTES_BEGIN)}\n)(.*?)({re.escape(_NOTES_END)})", re.DOTALL)
"""The notes of a card's text, group 2, between their marks."""
_ANEW = "zoo.open(FOLDER).render_card() writes the card anew; it keeps the notes between its marks"

_HUB_DATASETS = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}
# Metadata that have to follow from the release's own files.
_CHECKED = (
    *("library_name", "license", "license_name", "pipeline_tag", "datasets", "base_model", "model-index"),
)


def render(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the card of the release in `folder`, with the notes that a user wrote into the one there.

    Raises:
        ReleaseError: when a file that the card is made of is missing or damaged.
    """
    metrics, recipe, old = format.read_metrics(folder), format.read_recipe(folder), folder / format.CARD
    about, evaluations, example = config["zoo"], metrics["evaluations"], metrics.get("example")
    pictures = [file.stem for file in folder.glob(format.PICTURES) if format.PICTURE.fullmatch(file.name)]
    notes = NOTES.search(format.read_text(old)) if old.is_file() else None
    body = _template().render(
        about=about,
        cfg=config["pretrained_cfg"],
        classes=len(config.get("label_names") or about["class_names"]),
        config=config,
        counts=about["dataset"].get("class_counts"),
        evaluations=evaluations,
        example=example,
        example_file=format.EXAMPLE,
        loss_and_method=_loss_and_method(recipe),
        notes=f"{_NOTES_BEGIN}\n{notes[2] if notes else ''}{_NOTES_END}",
        objective=recipe.get("objective") or {},
        papers=bibtex(about["objective"], recipe),
        pictures=sorted(stem for stem in pictures if not (example and f"{stem}.png" == format.EXAMPLE)),
        recipe_text=format.read_text(folder / format.RECIPE).rstrip(),
        repo=f"ORG/{about['name']}",  # where it will be is said by `addressed`
        snapshot=format.snapshot_of(metrics["training"]),
        start=provenance.start_of(recipe),
        stock=not backbones.is_own(config["architecture"]),
        table=_table(evaluations),
        teachers=provenance.teachers_of(recipe),
        training=metrics["training"],
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
    environment.globals["facts"] = _facts
    environment.filters |= {"cell": escaped, "first_capital": capital, "repr": repr}
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


def check_card(folder: Path, config: Mapping[str, Any]) -> None:
    """Make sure that the card's metadata, its model-index above all, say what the release's own files say.

    Raises:
        ReleaseError: naming the card, what is wrong and what was measured.
    """
    file = folder / format.CARD
    provenance.check_license(config["pretrained_cfg"]["license"], f"{folder / format.CONFIG}: license")
    expected = _metadata(config, format.read_recipe(folder), format.read_metrics(folder)).to_dict()  # type: ignore[no-untyped-call]
    try:
        found = ModelCard(format.read_text(file)).data.to_dict()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())[:200] or type(error).__name__
        raise ReleaseError(f"{file}: metadata that the Hub does not take: {problem}. {_ANEW}") from None
    differing = [key for key in _CHECKED if found.get(key) != expected.get(key)]
    if differing or LIBRARY not in (found.get("tags") or []):
        key = differing[0] if differing else "tags"
        said = shlex.quote(str(found.get("license_name") or found.get("license") or "ID"))
        other = f". To set another licence: zoo push {folder} ORG/NAME --license {said}"
        raise ReleaseError(
            f"{file}: {key}: found {found.get(key)!r:.500}, but the release's own files say "
            f"{expected.get(key)!r:.500}. {_ANEW}{other if key.startswith('license') else ''}"
        )


def _metadata(
    config: Mapping[str, Any], recipe: Mapping[str, Any], metrics: Mapping[str, Any]
) -> ModelCardData:
    """Return the card's metadata; its model-index holds the numbers of `metrics`, to two decimals."""
    zoo, objective = config["zoo"], recipe.get("objective") or {}
    task = "image-classification" if config["num_classes"] else "image-feature-extraction"
    dataset, start = hub_dataset(zoo["dataset"]), _on_hub(provenance.start_of(recipe))
    bases = [*dict.fromkeys(filter(None, (start, *map(_on_hub, provenance.teachers_of(recipe)))))]
    stock = not backbones.is_own(config["architecture"])
    license, license_name = provenance.license_on_hub(config["pretrained_cfg"]["license"])
    data = ModelCardData(
        license=license,
        license_name=license_name,
        library_name="timm" if stock else LIBRARY,
        pipeline_tag=task,
        tags=[
            task,
            *["timm", "transformers"] * stock,
            LIBRARY,
            *[zoo["objective"]]
            * (zoo["objective"] != "unknown"),  # `zoo list --hub` takes it from this place
            *["contrastive-learning"] * (zoo["objective"] not in ("unknown", "classify")),
            *["long-tailed-recognition"] * bool((recipe.get("data") or {}).get("long_tail")),
            *["knowledge-distillation"] * bool(objective.get("distill")),
            *(part.replace("_", "-") for part in _loss_and_method(recipe)),
        ],
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
    known = (_HUB_DATASETS[name] for name in names if name in _HUB_DATASETS)
    return dataset.get("hub_id") or next(known, None)


def _on_hub(name: str | None) -> str | None:
    """Return the repository of weights that a recipe names, where they are on the Hub."""
    kind, _, rest = (name or "").partition(":")
    if kind == "timm":
        return f"timm/{rest}"
    return rest.partition("@")[0] if kind in ("hf-hub", "hf_hub") else None


def _loss_and_method(recipe: Mapping[str, Any]) -> list[str]:
    """Return the names of a recipe's loss and long-tailed method, as far as it has them."""
    given = ((recipe.get("objective") or {}).get("loss"), recipe.get("method"))
    names = (each.get("name") if isinstance(each, Mapping) else each for each in given)
    return [name for name in names if isinstance(name, str)]


def bibtex(name: str, recipe: Mapping[str, Any]) -> str:
    """Return the BibTeX entries of the methods that a recipe uses, or '' when it uses none with a paper.

    Args:
        name: of the objective.
        recipe: plain.
    """
    objective = recipe.get("objective") or {}
    parts = {key for key in ("feature_transform", "distill") if objective.get(key)}
    used = {name, *parts, *_loss_and_method(recipe)}
    text = files("zoo.release").joinpath("citations.bib").read_text(encoding="utf-8")
    entries = re.findall(r"^% of: ([^\n]*)\n(@.*?^\})", text, re.DOTALL | re.MULTILINE)
    return "\n\n".join(entry for words, entry in entries if used & {*words.split()})


def _results(evaluations: Sequence[Mapping[str, Any]]) -> Iterator[EvalResult]:
    for entry in evaluations:
        settings = "; ".join(_facts({**stated_settings(entry), "seed": entry.get("seed")}))
        task = "image-classification" if "accuracy" in entry["metrics"] else "image-feature-extraction"
        shown = {*in_order(entry["metrics"])}
        for name, value in entry["metrics"].items():
            if name not in shown or not is_number(value):
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
                metric_name=f"{metric_title(name)}, {entry['protocol']} (%)",
                metric_value=round(value, 2),
            )


def _table(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in which every evaluation is a row with its protocol, data and split."""
    names = in_order(name for entry in evaluations for name in entry["metrics"])
    head = ["Protocol", "Data", "Split", *(f"{metric_title(name)} (%)" for name in names), "Settings"]
    rows = [
        [
            *(entry["protocol"], entry["data"], split_words(entry)),
            *(_percent(entry["metrics"], name) for name in names),
            "; ".join(_facts(stated_settings(entry))),
        ]
        for entry in evaluations
    ]
    return markdown_table(head, rows, left=(0, 1, 2, len(head) - 1))


def _percent(metrics: Mapping[str, Any], name: str) -> str:
    value, interval = metrics.get(name), metrics.get(f"{name}_interval")
    if not is_number(value):
        return ""
    return f"{value:.2f} ± {interval:.2f}" if is_number(interval) else f"{value:.2f}"


def _facts(data: Mapping[str, Any], without: Sequence[str] = (), prefix: str = "") -> Iterator[str]:
    """Yield `name: value` for every plain value in nested `data`; long lists are left out."""
    for key, value in data.items():
        name = f"{prefix}{key}".replace("_", " ")
        if key in without and not prefix:
            continue
        if isinstance(value, Mapping):
            yield from _facts(value, prefix=f"{name} ")
        elif isinstance(value, list | tuple):
            if len(value) <= 8:
                yield f"{name}: {', '.join(map(str, value))}"
        elif value is not None:
            yield f"{name}: {value:.6g}" if isinstance(value, float) else f"{name}: {value}"
