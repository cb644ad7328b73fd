"""The card's text, of `card.md.j2`. It states no number that the release's own files do not hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import ModelCard

from zoo import backbones
from zoo.markdown import markdown_table
from zoo.release import format
from zoo.release.card import training
from zoo.release.card.citations import bibtex
from zoo.release.card.metadata import metadata
from zoo.release.card.tables import tables

# What stands between these lines is the user's, and survives when evaluations or pictures are added.
_NOTES_BEGIN = "<!-- Notes of your own go below this line: they stay when zoo writes this card again. -->"
_NOTES_END = "<!-- End of your notes; zoo writes everything outside them anew. -->"
NOTES = re.compile(f"({re.escape(_NOTES_BEGIN)}\n)(.*?)({re.escape(_NOTES_END)})", re.DOTALL)
"""The notes of a card's text, group 2, between their marks."""
_ADDRESS = re.compile(r'^release = zoo\.open\("([^"]+)"\)', re.MULTILINE)  # every card has it
_TOP = 5


def render(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the card of the release in `folder`, with the notes that a user wrote into the one there.

    Raises:
        ReleaseError: when a file that the card is made of is missing or damaged.
    """
    metrics, recipe = format.read_metrics(folder), format.read_recipe(folder)
    about, arch = config["zoo"], config["architecture"]
    repo, stock = (
        f"ORG/{about['name']}",
        not backbones.is_own(arch),
    )  # where it will be is said by `addressed`
    evaluations, counts = metrics["evaluations"], about["dataset"].get("class_counts")
    example, objective = metrics.get("example"), recipe.get("objective")
    pictures = [file.stem for file in folder.glob(format.PICTURES) if format.PICTURE.fullmatch(file.name)]
    shown = [*example["top"].items()] if example else []
    body = _template().render(
        about=about,
        arguments=", ".join(f"{key}={value!r}" for key, value in config["model_args"].items()),
        cfg=config["pretrained_cfg"],
        config=config,
        counts=counts,
        example=example,
        example_file=format.EXAMPLE,
        example_table=markdown_table(("Class", "Probability (%)"), [(n, f"{100 * p:.1f}") for n, p in shown]),
        level=counts is not None and counts["smallest"] == counts["largest"],
        measured={
            name for entry in evaluations for name in entry["metrics"] if "accuracy" in entry["metrics"]
        },
        notes=f"{_NOTES_BEGIN}\n{notes(folder / format.CARD)}{_NOTES_END}",
        papers=bibtex(about["objective"], recipe),
        picture=format.EXAMPLE if example else "photo.jpg",
        pictures=sorted(stem for stem in pictures if not (example and f"{stem}.png" == format.EXAMPLE)),
        prior=_adds_prior(objective if isinstance(objective, Mapping) else {}),
        protocols={entry["protocol"] for entry in evaluations}
        | {f"{e['protocol']} with tau" for e in evaluations if "tau" in (e.get("settings") or {})},
        recipe_text=format.read_text(folder / format.RECIPE).rstrip(),
        register="" if stock else f"import zoo  # registers {arch} with timm\n",
        repo=repo,
        shared=any(entry.get("shared_images") for entry in evaluations),
        size=config["pretrained_cfg"]["input_size"][-1],
        start=format.start_of(recipe),
        stock=stock,
        tables=tables(evaluations),
        teachers=format.teachers_of(recipe),
        top=min(_TOP, len(config.get("label_names") or about["class_names"])),
        trained=training.rows(about["dataset"], metrics["training"]),
        training=metrics["training"],
        untold=", ".join(dict.fromkeys(e["data"] for e in evaluations if e.get("train_set", ()) is None)),
    )
    return str(ModelCard(f"---\n{metadata(config, recipe, metrics).to_yaml()}\n---\n\n{body.rstrip()}\n"))


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("zoo.release.card", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown; the Hub cleans what it makes of it
    )
    return environment.get_template("card.md.j2")


def _adds_prior(objective: Mapping[str, Any]) -> bool:
    balanced = objective.get("loss") == "balanced_softmax" or objective.get("name") == "bcl"
    return balanced or bool(objective.get("rebalance"))


def addressed(card: str, repo_id: str) -> str:
    """Return the card as it stands in the repository `repo_id`: its code loads from there.

    The address in it may be a placeholder, or that of the repository that it was pulled from.
    """
    found = _ADDRESS.search(card)
    if found is None:
        return card
    address = re.compile(rf'("(?:hf-hub:)?|https://huggingface\.co/){re.escape(found[1])}(?="|/resolve/)')
    return address.sub(lambda old: f"{old[1]}{repo_id}", card)


def notes(card: Path) -> str:
    """Return what a user wrote between the marks of an earlier card, or ''."""
    if not card.is_file():
        return ""
    found = NOTES.search(format.read_text(card))
    return found[2] if found else ""
