"""The command line's way to name a data set: `KIND[:DIR][?key=value&...]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.config import Config, load_yaml, parse
from zoo.data.config import DataConfig, Digits, Folder, ListFiles, LongTail, Parquet, TorchvisionSource
from zoo.errors import DataError, did_you_mean

_SECTIONS: dict[str, type[Config]] = {
    "digits": Digits,
    "cifar10": TorchvisionSource,
    "cifar100": TorchvisionSource,
    "fashion_mnist": TorchvisionSource,
    "folder": Folder,
    "list": ListFiles,
    "parquet": Parquet,
}


def parse_data_spec(text: str) -> tuple[DataConfig, Path | None]:
    """Read e.g. `digits`, `folder:DIR` or `parquet:DIR?label=fine_label&imbalance=100`.

    Keys are those of the source's section and, for a long tail, those of `LongTail`; a key may be left out
    where it has a default. Everything else in the configuration has its default.

    Returns:
        The configuration, and the data folder where one was given.

    Raises:
        ZooError: naming the kind, key or value that does not fit, and the nearest valid one.
    """
    place, _, query = text.partition("?")
    kind, _, folder = place.partition(":")
    if kind not in _SECTIONS:
        raise DataError(
            f'data "{text}": unknown kind "{kind}".{did_you_mean(kind, _SECTIONS)} '
            f"Kinds: {', '.join(_SECTIONS)}; written KIND:DIR?key=value&key=value"
        )
    own = [key for key in _SECTIONS[kind].model_fields if key != "kind"]
    source: dict[str, Any] = {"kind": kind}
    tail: dict[str, Any] = {}
    for item in query.split("&") if query else []:
        key, equals, value = item.partition("=")
        if not equals:
            raise DataError(f'data "{text}": found "{item}", expected key=value')
        if key in source or key in tail:
            raise DataError(f'data "{text}": "{key}" is given twice')
        if key in own:
            source[key] = value if key != "download" else load_yaml(value, f'data "{text}"')
        elif key in LongTail.model_fields:
            tail[key] = load_yaml(value, f'data "{text}"')
        else:
            keys = [*own, *LongTail.model_fields]
            raise DataError(
                f'data "{text}": unknown key "{key}".{did_you_mean(key, keys)} '
                f"Keys of {kind}: {', '.join(keys)}"
            )
    config = parse(DataConfig, {"source": source, **({"long_tail": tail} if tail else {})}, f'data "{text}"')
    try:
        return config, Path(folder).expanduser() if folder else None
    except RuntimeError as error:  # "~" of nobody
        raise DataError(f'data "{text}": {error}') from None
