"""The parts of evaluation that do not need torch: protocol settings, and metrics as a table."""

from collections.abc import Mapping
from typing import Any

from zoo.config import parse
from zoo.errors import ZooError, did_you_mean
from zoo.recipe.protocols import PROTOCOLS
from zoo.release.schema import ACCURACIES, in_order, recall_k


def parse_protocol(name: str, settings: Mapping[str, Any]) -> Any:
    """Return a protocol with these settings; ZooError for an unknown one, with the nearest name."""
    if name not in PROTOCOLS:
        hint = did_you_mean(name, PROTOCOLS)
        raise ZooError(f'protocol: found "{name}", expected one of {", ".join(PROTOCOLS)}.{hint}')
    if "protocol" in settings:
        raise ZooError(f'protocol {name}: unknown key "protocol"; it is {name}')
    return parse(PROTOCOLS[name], {**settings, "protocol": name}, f"protocol {name}")


def metrics_table(rows: Mapping[str, Mapping[str, Any]], *, first: str = "method") -> str:
    """Return a table of metrics, one line per name, in percent with one decimal; `-` if there is none.

    Accuracies have the same columns in every table; calibration error (ECE), recalls and mean average
    precision only where present. Intervals are in brackets. `first` is the header of the names.
    """
    keys = {key for metrics in rows.values() for key in metrics}
    if "accuracy" in keys:
        keys |= ACCURACIES.keys()
    titles = {**ACCURACIES, "calibration_error": "ECE", "map": "mAP"}
    lines = [[first, *(titles.get(key) or f"R@{recall_k(key)}" for key in in_order(keys))]]
    for name, metrics in rows.items():
        pairs = [(metrics.get(key), metrics.get(f"{key}_interval")) for key in in_order(keys)]
        lines.append([name, *(_cell(value, half) for value, half in pairs)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines)
    return "\n".join(map("  ".join, aligned))


def _cell(value: float | None, half: float | None) -> str:
    if value is None or half is None:
        return "-" if value is None else f"{value:.1f}"
    return f"{value:.1f} [{value - half:.1f}, {value + half:.1f}]"
