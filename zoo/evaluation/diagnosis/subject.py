"""What a report is about: one run or release, with what was recorded of it and what is seen on its images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from zoo.modules.centers import Centers

if TYPE_CHECKING:
    from zoo.evaluation.diagnosis.look import Look

Row = Mapping[str, Any]

LAST = 0.2
"""Share of the recorded steps, at the end of a training, that `summary` takes means over."""


@dataclass(frozen=True, eq=False)
class Subject:
    """One run or release of a report.

    Attributes:
        label: short and unique in the report.
        name: of the weights.
        objective: the recipe's `objective.name`.
        data: the data set in words.
        seed: of the training; None where it is not known.
        group: the label without the seed: subjects of one group differ in the seed alone.
        recipe: as plain values; empty where there is none.
        rows: of metrics.jsonl; may be empty.
        class_rows: of classes.jsonl; may be empty.
        class_names: of the C classes.
        class_counts: training images of each class `[C]`, int64; -1 where not known.
        centers: learned class centers, if there are any.
        look: what is seen on a sample of the images; None where there are no images.
        numbers: by `summary`.
        without_look: why `look` is None, in words that complete "there is no look at its images: ...".
    """

    label: str
    name: str
    objective: str
    data: str
    seed: int | None
    group: str
    recipe: Mapping[str, Any]
    rows: Sequence[Row]
    class_rows: Sequence[Row]
    class_names: Sequence[str]
    class_counts: Tensor
    centers: Centers | None = None
    look: Look | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    without_look: str | None = None


def summary(subject: Subject, evaluations: Sequence[Row] = ()) -> dict[str, float]:
    """Return a subject's numbers, for tables and sweeps; what is not finite or not there is left out.

    Args:
        subject: its `numbers` are not read.
        evaluations: the entries of its release's metrics.json. Of several of one protocol the first counts:
            the recipe's own.

    Returns:
        Values by name. `recorded/NAME`: mean of every scalar over the last fifth of its recorded steps;
        `deviation/NAME`: its standard deviation over the same steps, how steady it is. `features/NAME`:
        measures of the look. `balance/...`: ratios of the most frequent to the rarest third of the classes.
        `accuracy/PROTOCOL`: top-1 in percent, and `accuracy/PROTOCOL/METRIC` every other metric.
    """
    raise NotImplementedError
