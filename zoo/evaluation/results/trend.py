"""How a number moves along a sweep: between its ends seed by seed, and over all its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from zoo.errors import capital
from zoo.evaluation.results.comparison import LEVEL, Estimate, differences, estimate, in_figures

Verdict = Literal["rises", "falls", "same", "no spread", "not told apart", "one seed", "no pair"]

Expected = Literal["rises", "falls", "near 0"]
"""What a source says of a number: between the ends, or at every value."""

BySeed = Mapping[int, float]
"""A number of one point of a sweep, by seed."""


@dataclass(frozen=True)
class Change:
    """A number at one value minus that at the sweep's first value, seed by seed.

    Attributes:
        value: label of the later value.
        before: mean at the first value, over the seeds that both have.
        after: mean at the later value, over the same seeds.
        difference: over those seeds; None where no seed has both.
        agree: of those seeds, how many differ in the direction of the mean.
    """

    value: str
    before: float
    after: float
    difference: Estimate | None
    agree: int

    @property
    def verdict(self) -> Verdict:
        """What the seeds say: a direction only where the interval of the difference leaves out 0.

        Where every seed has the same difference there is no interval: "same" for 0, else "no spread".
        """
        found = self.difference
        if found is None:
            return "no pair"
        if len(found.values) == 1:
            return "one seed"
        if found.half_width is None:
            return "same" if found.mean == 0 else "no spread"
        if abs(found.mean) <= found.half_width:
            return "not told apart"
        return "rises" if found.mean > 0 else "falls"


@dataclass(frozen=True)
class Trend:
    """How a number moves along the values of one axis.

    Attributes:
        points: mean over seeds by value; values of which no run has the number are left out.
        changes: of every other value against the first one; the last is that between the ends.
        correlation: Spearman's rank correlation of the number with the value over all runs; None for
            values that are no numbers, for fewer than three values, or where nothing varies.
        runs: how many have the number.
    """

    points: dict[str, Estimate]
    changes: tuple[Change, ...]
    correlation: float | None
    runs: int

    @property
    def ends(self) -> Change | None:
        """The change from the first value to the last."""
        return self.changes[-1] if self.changes else None


def trend(runs: Mapping[str, BySeed], values: Mapping[str, float] | None = None) -> Trend:
    """Summarise a number along an axis.

    Differences are taken seed by seed, since runs of one seed share images' order and initial weights. The
    intervals are of one comparison each: nothing corrects for their number.

    Args:
        runs: the number by the value's label and by seed, in the axis's order; only finite values count.
        values: what the labels stand for, where they are numbers; the order becomes theirs.
    """
    finite = {
        label: {seed: float(value) for seed, value in by_seed.items() if math.isfinite(value)}
        for label, by_seed in runs.items()
    }
    finite = {label: by_seed for label, by_seed in finite.items() if by_seed}
    if values is not None:
        finite = dict(sorted(finite.items(), key=lambda item: values[item[0]]))
    points = {label: estimate([by_seed[s] for s in sorted(by_seed)]) for label, by_seed in finite.items()}
    labels = [*finite]
    changes = tuple(_change(label, finite[labels[0]], finite[label]) for label in labels[1:])
    pairs = [] if values is None else [(values[k], v) for k in labels for v in finite[k].values()]
    return Trend(points, changes, _spearman(pairs), sum(map(len, finite.values())))


def _change(label: str, first: BySeed, other: BySeed) -> Change:
    shared = sorted(first.keys() & other.keys())
    if not shared:
        return Change(label, math.nan, math.nan, None, 0)
    found = estimate(differences([other[seed] for seed in shared], [first[seed] for seed in shared]))
    agree = sum(value * found.mean > 0 for value in found.values)
    before, after = (math.fsum(by[seed] for seed in shared) / len(shared) for by in (first, other))
    return Change(label, before, after, found, agree)


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    values, numbers = zip(*pairs, strict=True) if pairs else ((), ())
    if len({*values}) < 3 or len({*numbers}) < 2:
        return None
    return float(stats.spearmanr(values, numbers).statistic)


def in_words(
    found: Trend,
    *,
    number: str,
    along: str,
    expects: Expected | None = None,
    ordered: bool = True,
) -> str:
    """Say what was found, and no more than the runs carry.

    Args:
        found: the trend.
        number: how the number is called, e.g. "uniformity".
        along: how the axis is called, e.g. "tau".
        expects: what the source says of the number: between the ends, or at every value.
        ordered: whether the axis is one of numbers.
    """
    if not found.points:
        return f"No run has {number}."
    if found.ends is None:
        ((label, only),) = found.points.items()
        told = f"{capital(number)} is {only.in_figures()} at {along} {label}"
        alone = f"{told}; there is nothing to compare it with."
        return " ".join([alone, *(_near_zero(found, along, ordered) if expects == "near 0" else [])])
    first = next(iter(found.points))
    if ordered:
        texts = [_between(found.ends, number, f"{along} {first}", f"{along} {found.ends.value}")]
        texts += _inside(found, number)
    else:
        texts = [_between(each, number, first, each.value) for each in found.changes]
    if found.correlation is not None:
        texts.append(
            f"Spearman's rank correlation with {along} is {found.correlation:.2f} over all {found.runs} runs."
        )
    if expects == "near 0":
        return " ".join([*texts, *_near_zero(found, along, ordered)])
    return " ".join([*texts, *_expected(found.ends, expects)])


def _between(change: Change, number: str, first: str, last: str) -> str:
    difference, verdict = change.difference, change.verdict
    if difference is None:
        return f"No seed has {number} both at {first} and at {last}."
    seeds = len(difference.values)
    if verdict == "same":
        return f"From {first} to {last}, {number} stays the same with all {seeds} seeds."
    ends = f"from {in_figures(change.before)} to {in_figures(change.after)}"
    if verdict == "no spread":
        return (
            f"From {first} to {last}, {number} goes {ends}, by the same amount with all {seeds} seeds: "
            "without a spread there is no interval, and this tells nothing of chance."
        )
    if verdict == "one seed":
        return (
            f"From {first} to {last}, {number} goes {ends} with the one seed, which tells nothing of chance."
        )
    agree = f"{change.agree} of {seeds} seeds in this direction"
    if verdict == "not told apart":
        return (
            f"From {first} to {last}, {number} goes {ends}, which {seeds} seeds do not tell from no change "
            f"(difference {difference.in_figures()}; {agree})."
        )
    size = Estimate(abs(difference.mean), difference.half_width, ())
    return f"From {first} to {last}, {number} {verdict} by {size.in_figures()} ({ends}; {agree})."


def _inside(found: Trend, number: str) -> list[str]:
    """Say where a mean inside the range lies beyond both ends: the ends alone would hide it."""
    means = {label: value.mean for label, value in found.points.items()}
    labels = [*means]
    ends = (means[labels[0]], means[labels[-1]])
    texts = []
    for word, pick in (("highest", max), ("lowest", min)):
        label = pick(means, key=lambda each: means[each])
        if label not in (labels[0], labels[-1]) and means[label] not in ends:
            texts.append(f"Its {word} mean, {in_figures(means[label])}, is inside the range, at {label}.")
    return texts


def _expected(ends: Change, expects: str | None) -> list[str]:
    if expects is None or ends.verdict == "no pair":
        return []
    if ends.verdict == expects:
        return [f"The source expects that it {expects}: so it does here."]
    if ends.verdict in ("rises", "falls"):
        return [f"The source expects that it {expects}: here it does not."]
    return [f"The source expects that it {expects}: these runs do not show it."]


def _near_zero(found: Trend, along: str, ordered: bool) -> list[str]:
    """Compare the mean at each value with 0, by its interval."""
    places: dict[str, list[str]] = {}
    for label, each in found.points.items():
        at = f"{along} {label}" if ordered else label
        places.setdefault(_beside_zero(each), []).append(f"{at} ({each.in_figures()})")
    said = "; ".join(f"at {', '.join(labels)} {words}" for words, labels in places.items())
    return [f"The source expects 0: {said}."]


def _beside_zero(found: Estimate) -> str:
    if len(found.values) == 1:
        return "there is one seed, which tells nothing of chance"
    if found.half_width is None:
        return "all seeds have 0" if found.mean == 0 else "all seeds are the same, without an interval"
    if abs(found.mean) <= found.half_width:
        return "the interval holds 0, and whatever else lies in it"
    return f"the interval lies {'above' if found.mean > 0 else 'below'} 0"


NOTE = (
    f"± is the {LEVEL:.0%} interval of the mean over seeds (Student's t); differences are taken seed by "
    "seed. Each interval is of one comparison: nothing corrects for their number."
)
"""What tables and sentences of trends mean."""
