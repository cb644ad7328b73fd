"""Which results people's own text claims, and which of them were never measured.

A text may hold any number: what is judged are figures of a measured quality (accuracy, recall, error, ...).
They are looked for in sentences, in list items under the line that introduces them, and in tables' cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from zoo.config import is_number
from zoo.release.evaluations import ACCURACIES, in_order

# Spelled as in prose or as a key, `test_acc@1`. Two need their capitals: a map and an ap are other things.
_QUALITY = re.compile(
    r"(?<![A-Za-z])(?:mAP|AP)(?:@?\d+)?(?![A-Za-z])|(?<![A-Za-z])(?i:"
    r"accurac(?:y|ies)|accurate|acc(?:@?\d+)?|top[-_ ]?\d+|(?<!label )errors?"
    r"|recall(?:(?:@|_at_| at )\d+)?|R@\d+|(?:mean average|mean|average) precision"
    r"|k-?NN|nearest[- ]neighbou?rs?|linear[-_ ](?:prob(?:e|es|ing)|evaluation|classifier)"
    r"|performance|(?:success|hit) rates?|scores? (?:of|on)|scored|F1|AU(?:RO|PR)?C|m?IoU|ECE|sensitivity"
    r"|specificity"
    r")(?![A-Za-z])"
)
_JUDGED = re.compile(
    r"(?i)\b(?:classif(?:y|ies|ied)|recogni[sz]e[sd]?|correct(?:ly)?|misclassif(?:y|ies|ied)|mistaken"
    r"|(?:are|is) (?:right|wrong))\b"
)
_OF_ERRORS = re.compile(r"(?i)\berr|\bmisclassif|\bmistaken|\bwrong")
_REACHED = re.compile(r"(?i)\b(?:reach|achiev|attain)(?:e?s|e?d|ing|e)?\b")

_SOURCED = re.compile(r"https?://|arXiv:|\b\d{4}\.\d{4,5}\b")  # a figure of others, with its source beside it
_MARKUP = re.compile(r"[*`$\\]|(?<=\d),(?=\d{3}(?!\d))")  # and the comma of thousands
# Versions and dates are no figures, nor is a number that is part of a name: CIFAR-100, 1k, 20-way.
_NO_FIGURES = re.compile(
    r"(?<!\d)(?:\d+(?:\.\d+){2,}|\d{4}-\d{2}(?:-\d{2})?|\d++-?[A-Za-z][\w-]*)|(?<![A-Za-z])[A-Za-z]+-?\d[\w.]*",
    re.ASCII,
)
_PERCENTAGE = re.compile(r"(?<![\w.])(\d*+\.\d++|\d++)\s*(?:%|per\s?cent\b)")
_SHARE = re.compile(r"\s+of\b")  # 10 % of the labels
_INTERVAL = re.compile(r"\s+(?:confidence )?intervals?\b")
_NUMBER = re.compile(r"(?<![\w.])(\d*+\.\d++|\d{2,}+)(?![\w.]*\w)")
_SETTING = re.compile(  # what stands before its value, or its values
    r"(?i)(?<![A-Za-z])(?:tau|temperature|momentum|seeds?|lr|(?:learning|decay) rate|weight decay|l2|alpha"
    r"|beta|gamma|sigma|k|imbalance|batch(?: size)?|epochs?|steps?|dropout|threshold"
    r"|version|python|torch|cuda|CC BY|sec(?:tion|\.)|table|fig(?:ure|\.)|eq\.|[x×])"
    r"(?:\s*[=:]|\s+(?:of|is|was|to|at))?\s*(?:\d[\d.]*(?:,|\s+(?:and|or|to))\s+)*$"
)
_NEAR = 120  # characters before a number in which its setting is looked for
_UNIT = re.compile(
    r"\s?(?:(?:hours?|h|min(?:utes?)?|s(?:econds?)?|days?|[kMGT]B?|[mb]illion|times|x|×)(?!\w))"
)
_COUNTED = re.compile(  # 43 traffic signs; what follows a result is a comma or one of these words
    r"\s+(?!(?:on|in|at|for|with|by|after|and|or|of|to|over|from|against|as|than|when|if|is|are|was|were|but|while"
    r"|without|using|points?|there|here|overall)\b)[a-z]"
)

_MARK = re.compile(r"\s*(?:[-*+]\s|\d+[.)]\s|>|#|\|)")  # each begins something of its own
_SENTENCE_END = re.compile(
    r"(?<!vs\.)(?<!al\.)(?<!cf\.)(?<!\.g\.)(?<!\.e\.)(?<=[.!?])[\"')*]*\s+(?=[A-Z*`\"'\[])"
)


class Claim(NamedTuple):
    """A figure as it is written, `99.9 %`, and the line where it stands."""

    figure: str
    line: str


class _Statement(NamedTuple):
    topic: str
    """The heading, introduction or column's name that it stands under; "" for prose."""
    text: str
    lines: str
    """All of the lines that it takes part of."""


def unmeasured(lines: Iterable[str], evaluations: Iterable[Mapping[str, Any]]) -> Iterator[Claim]:
    """Yield the figures of a measured quality that no evaluation has, at the precision they are written with.

    An evaluation has its `value` and those of its metrics that cards show, in percent or as fractions; of
    errors, what they lack of 100. What has a source on its line is others' to answer for.

    Args:
        lines: what people wrote; "" where other text stands in between.
        evaluations: those of metrics.json.
    """
    measured = [value for entry in evaluations for value in _shown(entry)]
    errors = [100 - value for value in measured]
    for said in _statements(lines):
        known = [*measured, *errors] if _OF_ERRORS.search(f"{said.topic} {said.text}") else measured
        for figure, unit in _figures(said):
            if not _is_among(figure, known, fractions=not unit) and not _is_sourced(said.lines):
                line = next((each for each in said.lines.split("\n") if figure in each), said.lines)
                yield Claim(f"{figure}{unit}", line.strip())


@lru_cache(maxsize=1)  # a line may have many figures
def _is_sourced(lines: str) -> bool:
    return _SOURCED.search(lines) is not None


def _shown(entry: Mapping[str, Any]) -> Iterator[float]:
    metrics = entry["metrics"]
    names = in_order(metrics)
    intervals = [f"{name}_interval" for name in names if name in ACCURACIES]
    for value in (entry.get("value"), *(metrics.get(name) for name in (*names, *intervals))):
        if is_number(value):
            yield float(value)


def _statements(lines: Iterable[str]) -> Iterator[_Statement]:
    topic, columns = "", list[str]()
    for paragraph in _paragraphs(lines):
        first = paragraph[0].lstrip()
        if first.startswith("|"):
            cells = [cell.strip() for cell in first.strip()[1:].removesuffix("|").split("|")]
            columns = columns or cells
            label = cells[0] if cells is not columns else ""
            for column, cell in zip(columns, cells, strict=False):
                # a row may be named by what was measured, and the columns by data
                about = f"{topic} {column} {label if _QUALITY.search(label) else ''}"
                yield _Statement(about, cell if cells is columns else f"{column}: {cell}", first)
            continue
        columns = []
        text = "\n".join(paragraph)
        listed = _MARK.match(first) is not None and not first.startswith("#")
        start = 0
        for end in [*(found.end() for found in _SENTENCE_END.finditer(text)), len(text)]:
            begin_line, end_line = text.rfind("\n", 0, start) + 1, text.find("\n", end - 1)
            touched = text[begin_line : end_line if end_line >= 0 else None]
            yield _Statement(topic if listed else "", text[start:end], touched)
            start = end
        if not listed:  # what follows in a list or a table is about it
            introduces = first.startswith("#") or text.rstrip(" *").endswith(":")
            topic = paragraph[-1] if introduces else ""


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines that belong together: of prose or of one list item; a row or a line of code alone."""
    paragraph, in_code = list[str](), False
    for line in lines:
        fence = line.lstrip().startswith(("```", "~~~"))
        in_code ^= fence
        if paragraph and (fence or in_code or not line.strip() or _MARK.match(line)):
            yield paragraph
            paragraph = []
        if line.strip() and not fence:
            paragraph.append(line)
        if paragraph and paragraph[0].lstrip().startswith(("#", "|")):
            yield paragraph
            paragraph = []
    if paragraph:
        yield paragraph


def _figures(said: _Statement) -> Iterator[tuple[str, str]]:
    """Yield the figures of a quality in a statement, each with its unit, " %" or ""."""
    qualities = _QUALITY.search(f"{said.topic} {said.text}") is not None
    judged = _JUDGED.search(said.text) is not None
    if not (qualities or judged or _REACHED.search(said.text)):
        return
    plain = _NO_FIGURES.sub(" # ", _QUALITY.sub(" # ", _MARKUP.sub("", said.text)))
    for found in _PERCENTAGE.finditer(plain):
        share = _SHARE.match(plain, found.end()) and not judged
        if not share and not _INTERVAL.match(plain, found.end()):
            yield found[1], " %"
    if not qualities:  # a verb alone: of other numbers nobody can tell what they count
        return
    plain = _PERCENTAGE.sub("#", plain)
    for found in _NUMBER.finditer(plain):
        whole = found[1].isdigit()
        before = plain[max(0, found.start() - _NEAR) : found.start()]
        apart = _SETTING.search(before) or _UNIT.match(plain, found.end())
        if not apart and not (whole and _COUNTED.match(plain, found.end())) and float(found[1]) <= 100:
            yield found[1], ""


def _is_among(figure: str, values: Iterable[float], *, fractions: bool) -> bool:
    """Whether one of `values` rounds to `figure`, or as a percentage does to it as a fraction."""
    number, decimals = float(figure), len(figure.partition(".")[2])
    half = 0.5 * 10**-decimals + 1e-9  # either way where the next digit is a 5
    return any(
        abs(number - value) <= half or (fractions and decimals > 0 and abs(number - value / 100) <= half)
        for value in values
    )
