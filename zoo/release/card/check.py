"""Whether a card may be published: metadata that the Hub accepts, and no number that was not measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import CardData, ModelCard

from zoo.errors import ReleaseError
from zoo.release import format
from zoo.release.card.metadata import TAG, metadata
from zoo.release.card.render import render

_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_NO_FIGURES = re.compile(
    r"https?://\S+|arXiv:\S+|\b\d{4}\.\d{4,5}\b|\d+(?:\.\d+){2,}"
)  # links, papers, versions
# A figure is written with decimals or as a percentage; whole numbers count things.
_FIGURE = re.compile(r"(?<![\w.])(\d+\.(\d+)|\d+(?=\s?%))")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ANEW = "zoo.open(FOLDER).render_card() writes the card anew; it keeps the notes between its marks"


def check_card(folder: Path, config: Mapping[str, Any]) -> None:
    """Make sure that the card in `folder` says what the release's own files say.

    Its model-index has to hold every accuracy of `metrics.json` and no other; its results table only rows
    that follow from there; and every figure (a number with decimals, or a percentage) elsewhere in it has to
    be in metrics.json, config.json or recipe.yaml, at the precision that it is written with.

    Raises:
        ReleaseError: naming the card, what is wrong and what was measured.
    """
    file = folder / format.CARD
    text = format.read_text(file)
    found = _metadata(text, file)
    metrics, recipe = format.read_metrics(folder), format.read_recipe(folder)
    expected = _plain(metadata(config, recipe, metrics))
    for key in ("library_name", "license", "pipeline_tag"):
        if found.get(key) != expected[key]:
            raise ReleaseError(
                f"{file}: {key}: found {found.get(key)!r}, expected {expected[key]!r}. {_ANEW}"
            )
    if TAG not in (found.get("tags") or []):
        raise ReleaseError(f'{file}: tags: found {found.get("tags")}, expected "{TAG}" among them. {_ANEW}')
    _check_results(_results(found), _results(expected), file)
    _check_body(text, render(folder, config), [metrics, dict(config), recipe], file)


def _metadata(text: str, file: Path) -> dict[str, Any]:
    try:
        format.read_front_matter(
            text, f"{file}: metadata"
        )  # its limits first: the Hub's class reads any YAML
        return _plain(ModelCard(text).data)
    except ReleaseError as error:
        raise ReleaseError(f"{error}. {_ANEW}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReleaseError(f"{file}: metadata that the Hub does not take: {_line(error)}. {_ANEW}") from None


def _plain(data: CardData) -> dict[str, Any]:
    return dict(data.to_dict())  # type: ignore[no-untyped-call]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


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


def _check_body(text: str, rendered: str, records: list[Any], file: Path) -> None:
    own_lines = set(rendered.splitlines())
    measured = [float(number) for record in records for number in _numbers(record)]
    in_results = False
    for line in _FENCED.sub("", ModelCard(text).text).splitlines():
        if line.startswith("## "):
            in_results = line == "## Results"
        if line in own_lines:
            continue
        if in_results and line.startswith("|"):
            raise ReleaseError(
                f"{file}: results: the row {line!r} does not follow from {format.METRICS}. {_ANEW}"
            )
        for figure, decimals in _figures(line):
            if not any(round(value, decimals) == float(figure) for value in measured):
                raise ReleaseError(
                    f'{file}: the number {figure} in "{line.strip()[:80]}" is neither in {format.METRICS} '
                    f"nor in {format.CONFIG} or {format.RECIPE}: a card states what was measured. {_ANEW}"
                )


def _figures(line: str) -> Iterator[tuple[str, int]]:
    """Yield the figures of a line, as written and with their number of decimals."""
    line = _THOUSANDS.sub("", _NO_FIGURES.sub("", line))
    for found in _FIGURE.finditer(line):
        yield found[1], len(found[2] or "")


def _numbers(record: Any) -> Iterator[float]:
    """Yield the numbers in nested plain values, those inside texts included."""
    if isinstance(record, Mapping):
        for value in record.values():
            yield from _numbers(value)
    elif isinstance(record, list):
        for value in record:
            yield from _numbers(value)
    elif isinstance(record, str):
        yield from (float(figure) for figure, _ in _figures(record))
    elif isinstance(record, (int, float)) and not isinstance(record, bool):
        yield record
