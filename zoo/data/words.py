"""How tables, cards and names say what of a data set is trained on. Imports nothing: `zoo list` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def selection_words(long_tail: Mapping[str, Any] | None, subset: Mapping[str, Any] | None) -> list[str]:
    """Say in a few words what of a data set is trained on, e.g. `["long tail 50", "1 % of labels"]`."""
    words = [f"long tail {long_tail['imbalance']:g}"] if long_tail else []
    if subset and subset.get("per_class"):
        words.append(f"{subset['per_class']} labels a class")
    elif subset:
        words.append(f"{100 * subset['fraction']:g} % of labels")
    return words


def data_words(facts: Mapping[str, Any]) -> str:
    """Name described data in a few words, e.g. `digits, long tail 50` or `cifar100 fine_label`."""
    return ", ".join([str(facts["name"]), *selection_words(facts.get("long_tail"), facts.get("subset"))])
