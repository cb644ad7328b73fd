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
    "fashion_mnist": TorchvisionSource,
    "folder": Folder,
    "list": ListFiles,
    "parquet": Parquet,
    "hub": HubDataset,
}
_SELECTION = list(dict.fromkeys([*LongTail.model_fields, *Subset.model_fields]))
_LIMIT = "max_bad_images"
_PLACE = {"kind", "repo", "revision"}  # keys of a source that stand before the "?"


def parse_data_spec(text: str) -> tuple[DataConfig, Path | None]:
    """Read e.g. `folder:DIR`, `parquet:DIR?label=fine_label&imbalance=100` or `hub:org/name@revision`.

    Keys are those of the source's section and, for a long tail or few labels, those of `LongTail` and
    `Subset`; `seed` is that of each of the two that is asked for. `max_bad_images` is that of `DataConfig`. A
    key may be left out where it has a default. Everything else in the configuration has its default.

    Returns:
        The configuration, and the data folder where one was given.

    Raises:
        ZooError: naming the kind, key or value that does not fit, and the nearest valid one.
    """
    place, _, query = text.partition("?")
    kind, _, folder = place.partition(":")
    if kind not in _SECTIONS:
        raise DataError(
            f'data "{text}": no folder, and unknown kind "{kind}".{did_you_mean(kind, _SECTIONS)} '
            f"Kinds: {', '.join(_SECTIONS)}; written KIND:DIR?key=value&key=value"
        )
    own = [key for key in _SECTIONS[kind].model_fields if key not in _PLACE]
    source: dict[str, Any] = {"kind": kind}
    if kind == "hub":
        source["repo"], _, revision = folder.partition("@")
        source["revision"], folder = revision or None, ""
    chosen: dict[str, Any] = {}
    for item in query.split("&") if query else []:
        key, equals, value = item.partition("=")
        if not equals:
            raise DataError(f'data "{text}": found "{item}", expected key=value')
        if key in source or key in chosen:
            raise DataError(f'data "{text}": "{key}" is given twice')
        if key in own:
            source[key] = value if key != "download" else load_yaml(value, f'data "{text}"')
        elif key in _SELECTION or key == _LIMIT:
            chosen[key] = load_yaml(value, f'data "{text}"')
        else:
            keys = [*own, *_SELECTION, _LIMIT]
            raise DataError(
                f'data "{text}": unknown key "{key}".{did_you_mean(key, keys)} '
                f"Keys of {kind}: {', '.join(keys)}"
            )
    few = {key: value for key, value in chosen.items() if key in Subset.model_fields}
    tail = {key: value for key, value in chosen.items() if key in LongTail.model_fields}
    sections: dict[str, Any] = {"source": source}
    if few.keys() - {"seed"}:
        sections["subset"] = few
    if tail.keys() - {"seed"} or (tail and "subset" not in sections):
        sections["long_tail"] = tail
    if _LIMIT in chosen:
        sections[_LIMIT] = chosen[_LIMIT]
    config = parse(DataConfig, sections, f'data "{text}"')
    try:
        return config, Path(folder).expanduser() if folder else None
    except RuntimeError as error:  # "~" of nobody
        raise DataError(f'data "{text}": {error}') from None
