"""Whether a card may be published: metadata that the Hub accepts, and no number that was not measured."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CardData, ModelCard

from zoo.config import is_number
from zoo.errors import ReleaseError
from zoo.release import format, licenses
from zoo.release.card.metadata import metadata
from zoo.release.card.render import notes, render
from zoo.release.schema import LIBRARY

# Versions are no figures, nor is a number that is part of a name: CIFAR-100, top-1, 1k.
_NO_FIGURES = re.compile(r"\d+(?:\.\d+){2,}|[A-Za-z]+-?\d[\w.]*|\d+[A-Za-z]\w*")
_PERCENTAGE = re.compile(r"(?<![\w.])(\d*\.?\d+)(?=\s?(?:%|percent\b))")
_NUMBER = re.compile(r"(?<![\w.])(\d*\.\d+|\d{2,})(?![\w.]*\w)")
_METRIC = re.compile(r"\b(?:acc(?:uracy|uracies)?|top-?[15]|error|mAP|F1|recall)\b", re.IGNORECASE)
_SOURCED = re.compile(r"https?://|arXiv:|\b\d{4}\.\d{4,5}\b")  # a figure of others, with its source beside it
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ANEW = "zoo.open(FOLDER).render_card() writes the card anew; it keeps the notes between its marks"


def check_card(folder: Path, config: Mapping[str, Any]) -> None:
    """Make sure that the card in `folder` says what the release's own files say.

    Its model-index has to hold every accuracy of `metrics.json` and no other; its results table only rows
    that follow from there. What people wrote into it (the description, notes, anything by hand) may say only
    figures that are in metrics.json, at the precision that they are written with: percentages, and on lines
    that name a metric any number that is no setting of config.json or recipe.yaml either. Figures of others
    need their source, a link or arXiv number, on the same line.

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
    own = {*notes(file).splitlines(), *config["zoo"]["description"].splitlines()}
    rendered = set(render(folder, config).splitlines())
    settings = [value for record in (config, recipe) for value in _numbers(record)]
    _check_body(text, rendered, own, list(_numbers(metrics)), settings, file)


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


def _check_body(
    text: str, rendered: set[str], own: set[str], measured: list[float], settings: list[float], file: Path
) -> None:
    in_results = False
    for line in ModelCard(text).text.splitlines():
        if line.startswith("## "):
            in_results = line == "## Results"
        if line in rendered and line not in own:  # rendering copies what people wrote
            continue
        if in_results and line.startswith("|") and line not in rendered:
            raise ReleaseError(
                f"{file}: results: the row {line!r} does not follow from {format.METRICS}. {_ANEW}"
            )
        for figure in _unmeasured(line, measured, settings):
            raise ReleaseError(
                f'{file}: {figure} in "{line.strip()[:80]}" was not measured here, it is not in '
                f"{format.METRICS}; measure it, take it out, or give its source, a link, on the same line"
            )


def _unmeasured(line: str, measured: list[float], settings: list[float]) -> Iterator[str]:
    """Yield the figures of a line of somebody's own words that nothing recorded has."""
    if _SOURCED.search(line):
        return
    plain = _THOUSANDS.sub("", _NO_FIGURES.sub("", line))
    for found in _PERCENTAGE.finditer(plain):
        shares = (100 * value for value in settings if 0 < value <= 1)
        if not _is_among(found[1], [*measured, *shares]):
            yield f"{found[1]} %"
    if _METRIC.search(line):
        for found in _NUMBER.finditer(_PERCENTAGE.sub("", plain)):
            if not _is_among(found[1], [*measured, *settings]):
                yield found[1]


def _is_among(figure: str, values: list[float]) -> bool:
    """Whether one of `values` rounds to `figure`, or as a percentage does to it as a fraction."""
    number, decimals = float(figure), len(figure.partition(".")[2])
    return any(
        number == round(value, decimals) or (decimals > 0 and number == round(value / 100, decimals))
        for value in values
    )


def _numbers(record: Any) -> Iterator[float]:
    """Yield the numbers in nested plain values."""
    if isinstance(record, Mapping):
        for value in record.values():
            yield from _numbers(value)
    elif isinstance(record, list):
        for value in record:
            yield from _numbers(value)
    elif is_number(record):
        yield float(record)
