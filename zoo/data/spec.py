"""The command line's way to name a data set: `KIND[:DIR][?key=value&...]`.

A data set on the Hub has its repository and revision for the folder: `hub:org/name[@revision]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.config import Config, load_yaml, parse
from zoo.data.config import (
    DataConfig,
    Digits,
    Folder,
    HubDataset,
    ListFiles,
    LongTail,
    Parquet,
    Subset,
    TorchvisionSource,
)
from zoo.errors import DataError, did_you_mean

_SECTIONS: dict[str, type[Config]] = {
    "digits": Digits,
    "cifar10": TorchvisionSource,
    "cifar100": TorchvisionSource,
    "folder": Folder,
    "list": ListFiles,
    "parquet": Parquet,
    "hub": HubDataset,
}
_TAIL, _FEW = LongTail.model_fields, Subset.model_fields
_PLACE = {"kind", "repo", "revision"}  # keys of a source that stand before the "?"


def parse_data_spec(text: str) -> tuple[DataConfig, Path | None]:
    """Read e.g. `folder:DIR`, `parquet:DIR?label=fine_label&imbalance=100` or `hub:org/name@revision`.

    Keys are those of the source's section and, for a long tail or few labels, those of `LongTail` and
    `Subset`; `seed` is that of each of the two that is asked for. A key may be left out where it has a
    default. Everything else in the configuration has its default.

    Returns:
        The configuration, and the data folder where one was given.

    Raises:
        ZooError: naming the kind, key or value that does not fit, and the nearest valid one.
    """
    where = f'data "{text}"'
    place, _, query = text.partition("?")
    kind, _, folder = place.partition(":")
    if kind not in _SECTIONS:
        raise DataError(
            f'{where}: no folder, and unknown kind "{kind}".{did_you_mean(kind, _SECTIONS)} '
            f"Kinds: {', '.join(_SECTIONS)}; written KIND:DIR?key=value&key=value"
        )
    source: dict[str, Any] = {"kind": kind}
    if kind == "hub":
        source["repo"], _, revision = folder.partition("@")
        source["revision"], folder = revision or None, ""
    own = [key for key in _SECTIONS[kind].model_fields if key not in _PLACE]
    chosen: dict[str, Any] = {}
    for item in query.split("&") if query else []:
        key, equals, value = item.partition("=")
        keys = list(dict.fromkeys([*own, *_TAIL, *_FEW]))
        if not equals or key in source or key in chosen:
            raise DataError(f'{where}: found "{item}", expected key=value, each key once')
        if key not in keys:
            hint = did_you_mean(key, keys)
            raise DataError(f'{where}: unknown key "{key}".{hint} Keys of {kind}: {", ".join(keys)}')
        (source if key in own else chosen)[key] = (
            value if key in own and key != "download" else load_yaml(value, where)
        )
    sections: dict[str, Any] = {"source": source}
    few = {key: value for key, value in chosen.items() if key in _FEW}
    tail = {key: value for key, value in chosen.items() if key in _TAIL}
    if few.keys() - {"seed"}:
        sections["subset"] = few
    if tail.keys() - {"seed"} or (tail and "subset" not in sections):
        sections["long_tail"] = tail
    config = parse(DataConfig, sections, where)
    try:
        return config, Path(folder).expanduser() if folder else None
    except RuntimeError as error:  # "~" of nobody
        raise DataError(f"{where}: {error}") from None
