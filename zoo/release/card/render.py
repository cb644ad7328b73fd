"""The card's text. It states no number that the release's own files do not hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from zoo.release import format
from zoo.release.card import pictures, sections
from zoo.release.card.metadata import metadata

# What stands between these lines is the user's, and survives when evaluations or pictures are added.
_NOTES_BEGIN = "<!-- Notes of your own go below this line: they stay when zoo writes this card again. -->"
_ADDRESS = re.compile(r'^release = zoo\.open\("([^"]+)"\)', re.MULTILINE)  # sections.use writes it
_NOTES_END = "<!-- End of your notes; zoo writes everything outside them anew. -->"


def render(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the card of the release in `folder`, with the notes that a user wrote into the one there.

    Raises:
        ReleaseError: when a file that the card is made of is missing or damaged.
    """
    metrics = format.read_metrics(folder)
    recipe_text = format.read_text(folder / format.RECIPE)
    recipe = format.read_recipe(folder)
    evaluations, training = metrics["evaluations"], metrics["training"]
    zoo = config["zoo"]
    parts = [
        f"# {zoo['name']}",
        zoo["description"],
        sections.use(config, placeholder(zoo["name"])),
        sections.centers(config, recipe),
        sections.results(evaluations),
        pictures.section(_pictures(folder), level=_level(zoo["dataset"])),
        sections.model(config),
        sections.training(zoo, training, recipe_text),
        sections.limits(config, training),
        f"{_NOTES_BEGIN}\n{notes(folder / format.CARD)}{_NOTES_END}",
        sections.licence(config["pretrained_cfg"]["license"], recipe),
        sections.citation(zoo["objective"], recipe),
    ]
    body = "\n\n".join(part for part in parts if part)
    return str(ModelCard(f"---\n{metadata(config, recipe, metrics).to_yaml()}\n---\n\n{body}\n"))


def _level(dataset: Mapping[str, Any]) -> bool:
    """Whether all classes are known to have as many training images."""
    counts = dataset.get("class_counts")
    return counts is not None and counts["smallest"] == counts["largest"]


def _pictures(folder: Path) -> list[str]:
    """Return the pictures that are published with the card; other names stay behind."""
    return sorted(file.name for file in folder.glob(format.PICTURES) if format.PICTURE.fullmatch(file.name))


def addressed(card: str, repo_id: str) -> str:
    """Return the card as it stands in the repository `repo_id`: its code loads from there.

    The address in it may be the placeholder, or that of the repository that it was pulled from.
    """
    found = _ADDRESS.search(card)
    if found is None:
        return card
    quoted = re.compile(rf'"(hf-hub:)?{re.escape(found[1])}"')
    return quoted.sub(lambda old: f'"{old[1] or ""}{repo_id}"', card)


def placeholder(name: str) -> str:
    """Return what stands in a card for the repository, as long as it has none."""
    return f"ORG/{name}"


def notes(card: Path) -> str:
    """Return what a user wrote between the marks of an earlier card, or ''."""
    if not card.is_file():
        return ""
    found = re.search(
        f"{re.escape(_NOTES_BEGIN)}\n(.*?){re.escape(_NOTES_END)}", format.read_text(card), re.DOTALL
    )
    return found[1] if found else ""
