"""Whether a card may be published: metadata that the Hub accepts, and results that were measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CardData, ModelCard

from zoo.errors import ReleaseError
from zoo.release import format, licenses
from zoo.release.card.metadata import metadata
from zoo.release.card.render import notes, render
from zoo.release.schema import LIBRARY

_ANEW = "zoo.open(FOLDER).render_card() writes the card anew; it keeps the notes between its marks"


def check_card(folder: Path, config: Mapping[str, Any]) -> None:
    """Make sure that the card in `folder` says what the release's own files say.

    Its model-index has to hold every accuracy of `metrics.json` and no other; its results table only rows
    that follow from there. Descriptions and notes are people's own, and not judged.

    Raises:
        ReleaseError: naming the card, what is wrong and what was measured.
    """
    file = folder / format.CARD
    licenses.check(config["pretrained_cfg"]["license"], f"{folder / format.CONFIG}: pretrained_cfg.license")
    text = format.read_text(file)
    found = _metadata(text, file)
    metrics, recipe = format.read_metrics(folder), format.read_recipe(folder)
    expected = _plain(metadata(config, recipe, metrics))
    for key in ("library_name", "license", "license_name", "pipeline_tag", "datasets", "base_model"):
        said, right = found.get(key), expected.get(key)
        if said != right:
            mend = _relicensing(found, folder) if key.startswith("license") else _ANEW
            raise ReleaseError(f"{file}: {key}: found {said!r}, expected {right!r}. {mend}")
    if LIBRARY not in (found.get("tags") or []):
        raise ReleaseError(
            f'{file}: tags: found {found.get("tags")}, expected "{LIBRARY}" among them. {_ANEW}'
        )
    _check_results(_results(found), _results(expected), file)
    rendered = {*render(folder, config).splitlines(), *notes(file).splitlines()}
    in_results = False
    for line in text.splitlines():
        if line.startswith("## "):
            in_results = line == "## Results"
        if in_results and line.startswith("|") and line not in rendered:
            raise ReleaseError(
                f"{file}: results: the row {line!r} does not follow from {format.METRICS}. {_ANEW}"
            )


def _relicensing(found: Mapping[str, Any], folder: Path) -> str:
    """Say how the release gets the licence that somebody wrote into its card."""
    said = str(found.get("license_name") or found.get("license") or "ID")
    return (
        f"{format.CONFIG} records the licence. To set another one: zoo push {shlex.quote(str(folder))} "
        f'ORG/NAME --license {shlex.quote(said)}, or in Python zoo.open("{folder}").with_license("{said}"); '
        "both write the card anew, but for the notes between its marks"
    )


def _metadata(text: str, file: Path) -> dict[str, Any]:
    try:
        format.read_front_matter(
            text, f"{file}: metadata"
        )  # its limits first: the Hub's class reads any YAML
        return _plain(ModelCard(text).data)
    except ReleaseError as error:
        raise ReleaseError(f"{error}. {_ANEW}") from None
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise ReleaseError(f"{file}: metadata that the Hub does not take: {_line(error)}. {_ANEW}") from None


def _plain(data: CardData) -> dict[str, Any]:
    return dict(data.to_dict())  # type: ignore[no-untyped-call]


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "`model_index`" in text:  # the rest is advice for programs
        return "its model-index is not of the Hub's form"
    return text[:200].rstrip(".") or type(error).__name__


_Result = tuple[str, str, str, str]  # data, protocol and settings, split, metric


def _results(data: Mapping[str, Any]) -> dict[_Result, Any]:
    """Flatten a model-index."""
    return {
        (
            str(result["dataset"]["name"]),
            str(result["dataset"].get("config")),
            str(result["dataset"].get("split")),
            str(metric["type"]),
        ): metric["value"]
        for model in data.get("model-index") or []
        for result in model["results"]
        for metric in result["metrics"]
    }


def _check_results(found: Mapping[_Result, Any], expected: Mapping[_Result, Any], file: Path) -> None:
    for key in [*found, *expected]:
        if found.get(key) != expected.get(key):
            said, measured = found.get(key, "nothing"), expected.get(key, "nothing")
            raise ReleaseError(
                f'{file}: model-index: {key[3]} of "{key[1]}" on {key[0]}: found {said}, '
                f"but {format.METRICS} has {measured}. {_ANEW}"
            )
