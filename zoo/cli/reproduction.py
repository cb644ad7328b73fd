"""What `zoo reproduce` prints."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from zoo.cli.show import print_columns
from zoo.errors import ZooError

if TYPE_CHECKING:
    from zoo.api import Reproduction
    from zoo.evaluation.results.agreement import Figure, Number


_Row = tuple[str, str, str, str, str, str, str]
_HEADING: _Row = ("EVALUATION", "METRIC", "RECORDED", "REPRODUCED", "DIFFERENCE", "TOLERANCE", "VERDICT")


def print_reproduction(found: Reproduction) -> None:
    """Print recorded against reproduced figures, and where each was made.

    Raises:
        ZooError: as the last line, if a figure differs.
    """
    rows = [_HEADING, *map(_row, _shown(found.figures))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print_columns([(*row[:2], *map(str.rjust, row[2:6], widths[2:6]), row[6]) for row in rows])
    print(f"\ntolerance: {found.rule}")
    for label, reason in found.not_repeated:
        print(f"not repeated: {label}: {reason}")
    print(_bits("weights", found.same_weights))
    if found.same_centers is not None:
        print(_bits("centers", found.same_centers))
    for side, facts in zip(("recorded", "reproduced"), found.environments(), strict=True):
        said = {**facts, **facts.get("versions", {})}
        shown = [f"{key} {value}" for key, value in said.items() if not isinstance(value, dict)]
        print(f"{side} in: {', '.join(shown) or 'an environment that is not recorded'}")
    print(f"\n{found.made.path}: the new release, and the comparison in reproduction.json")
    judged = [figure for figure in found.figures if figure.verdict != "not judged"]
    wrong = [figure for figure in judged if not figure.agrees]
    left_out = f"; {len(found.not_repeated)} evaluation(s) not repeated" if found.not_repeated else ""
    if wrong:
        worst = max(wrong, key=_excess)
        raise ZooError(
            f"{found.recorded.name} was not reproduced: {len(wrong)} of {len(judged)} figures differ by more "
            f"than the tolerance, most of all {worst.of}: {worst.name}, recorded {_number(worst.recorded)}, "
            f"reproduced {_number(worst.reproduced)}{left_out}"
        )
    if not found.compared:
        raise ZooError(
            f"{found.recorded.name} was not reproduced: no figure of its evaluations could be compared, and "
            "those of the training say nothing of how good the model is"
        )
    same = sum(figure.verdict == "same" for figure in judged)
    print(
        f"{found.recorded.name} was reproduced: {len(judged)} figures agree, {same} of them to the last "
        f"digit{left_out}"
    )


def _shown(figures: Iterable[Figure]) -> list[Figure]:
    """Leave of each list only the figure that is farthest off, and say of how many it is that."""
    lists: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        parent, _, last = figure.name.rpartition(".")
        lists.setdefault((figure.of, parent if last.isdigit() else figure.name), []).append(figure)
    shown = []
    for group in lists.values():
        worst = max(group, key=_excess)
        text = f" (worst of {len(group)})" if len(group) > 1 else ""
        shown.append(worst._replace(name=worst.name + text))
    return shown


def _excess(figure: Figure) -> float:
    """Return the difference in units of the tolerance."""
    if figure.verdict == "same" or figure.tolerance is None:
        return 0.0
    if figure.difference is None or figure.tolerance == 0:
        return math.inf
    return abs(figure.difference) / figure.tolerance


def _row(figure: Figure) -> _Row:
    difference = "-" if figure.difference is None else _number(figure.difference, sign="+")
    return (
        figure.of,
        figure.name,
        _number(figure.recorded),
        _number(figure.reproduced),
        difference,
        "-" if figure.tolerance is None else f"{figure.tolerance:.2f}",
        figure.verdict if figure.agrees else figure.verdict.upper(),
    )


def _number(value: Number | None, sign: str = "") -> str:
    if value is None:
        return "-"
    return f"{value:{sign},}" if isinstance(value, int) else f"{value:{sign}.2f}"


def _bits(what: str, same: bool) -> str:
    return f"{what}: the same bits (SHA-256)" if same else f"{what}: other bits (SHA-256)"
