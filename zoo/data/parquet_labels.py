"""The labels of parquet files: numbers, with or without names in the metadata, or words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.data.labels import classes_of, difference, indices_of, numbered
from zoo.errors import DataError, did_you_mean

Tables = Sequence[tuple[Any, Path]]
"""Arrow tables, and the file of each."""


def read_labels(shards: Tables, trained: Tables, column: str) -> tuple[NDArray[np.int64], list[str]]:
    """Return the labels `[N]` of a split's shards, and the names of the classes, the same for both splits.

    Args:
        shards: one or more.
        trained: those of the training split, when `shards` are another one's and they can be read.
        column: of the labels.

    Raises:
        DataError: for labels that are no class, and shards with other classes.
    """
    of_training = trained or shards
    if _is_text(shards[0][0][column].type):
        known = classes_of([word for table, file in of_training for word in _words(table, column, file)])
        found = []
        for table, file in shards:
            where = f'parquet: column "{column}" of {file} row '
            words = _words(table, column, file)
            found.append(indices_of(words, known, "the training split", lambda row, w=where: f"{w}{row}"))  # type: ignore[misc]
        return np.concatenate(found), known
    parts = [_numbers(table, column, file) for table, file in shards]
    in_training = [_numbers(table, column, file) for table, file in trained] or parts
    named = next((part for part in in_training if part.names), None)
    if named is not None:
        places = [_renumbered(part, named, column) for part in parts]
        _check_numbering([*in_training, *parts], column)
        return np.concatenate(places), named.names
    most = max(part.largest for part in in_training)
    beyond = next((part for part in parts if part.largest > most), None)
    if beyond is not None:
        raise DataError(
            f'parquet: label {beyond.largest} in "{column}" of {beyond.file}, but the training split has '
            f"only 0 to {most}"
        )
    _check_numbering([*in_training, *parts], column)
    names = numbered(most, f'parquet: column "{column}" of {in_training[0].file}')
    return np.concatenate([part.labels for part in parts]), names


class _Numbers(NamedTuple):
    """A shard's labels `[N]`, and the names of their classes, none where its metadata have none."""

    labels: NDArray[np.int64]
    names: list[str]
    file: Path

    @property
    def largest(self) -> int:
        return int(self.labels.max(initial=0))


def _numbers(table: Any, column: str, file: Path) -> _Numbers:
    part = _Numbers(_labels(table, column, file), _class_names(table.schema.metadata, column), file)
    if part.names and part.largest >= len(part.names):
        raise DataError(
            f'parquet: label {part.largest} in "{column}" of {file}, '
            f"whose metadata name only {len(part.names)} classes"
        )
    return part


def _renumbered(part: _Numbers, named: _Numbers, column: str) -> NDArray[np.int64]:
    """Return a shard's labels as places among the names of another one, whose order may be another."""
    if not part.names or part.names == named.names:
        return part.labels
    if sorted(part.names) != sorted(named.names) or len(set(part.names)) < len(part.names):
        ours, theirs = part.file.name, named.file.name
        raise DataError(
            f'parquet: column "{column}": {part.file} names {len(part.names)} classes and {named.file} '
            f"{len(named.names)}, expected the same: {difference(part.names, named.names, ours, theirs)}"
        )
    places = {name: place for place, name in enumerate(named.names)}
    return np.array([places[name] for name in part.names], dtype=np.int64)[part.labels]


def _check_numbering(parts: Sequence[_Numbers], column: str) -> None:
    """Refuse shards of which some name their classes and others do not, unless both surely number alike.

    Who numbered those without names had the same list, or the sorted names of the classes in them. For names
    that are sorted, and numbers up to the last class, that is one numbering.
    """
    named = next((part for part in parts if part.names), None)
    bare = [part for part in parts if not part.names and len(part.labels)]
    if named is None or not bare:
        return
    names, largest = named.names, max(part.largest for part in bare)
    told = f'parquet: column "{column}": {named.file} names its {len(names)} classes, {bare[0].file} does not'
    remedy = "expected names in the metadata of all files, or of none"
    if largest >= len(names):
        raise DataError(f"{told} and has label {largest}; {remedy}")
    if any(part.names and part.names != names for part in parts):
        raise DataError(f"{told}, and other files list them otherwise; {remedy}")
    as_sorted = names == sorted(set(names)) and largest == len(names) - 1
    if not as_sorted and names != [str(c) for c in range(len(names))]:
        raise DataError(
            f"{told}, so it is not certain that its labels 0 to {largest} mean the same classes; {remedy}"
        )


def _labels(table: Any, column: str, file: Path) -> NDArray[np.int64]:
    import pyarrow as pa

    values = table[column]
    if not pa.types.is_integer(values.type):
        numeric = [f.name for f in table.schema if pa.types.is_integer(f.type)]
        raise DataError(
            f'parquet: column "{column}" of {file} holds {values.type}, expected integers 0 to C - 1, '
            f"or text.{did_you_mean(column, numeric)}"
        )
    if values.null_count:
        raise DataError(f'parquet: column "{column}" of {file} has {values.null_count} empty labels')
    labels: NDArray[np.int64] = values.to_numpy().astype(np.int64)
    if len(labels) and labels.min() < 0:
        raise DataError(
            f"parquet: row {labels.argmin()} of {file} has label {labels.min()}, expected 0 to C - 1"
        )
    return labels


def _class_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str]:
    """Return the names that the `datasets` library stores with the schema, or none."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _words(table: Any, column: str, file: Path) -> list[str]:
    """Return labels that are text."""
    values = table[column]
    if not _is_text(values.type):
        raise DataError(
            f'parquet: column "{column}" of {file} holds {values.type}, in other files it is text'
        )
    if values.null_count:
        raise DataError(f'parquet: column "{column}" of {file} has {values.null_count} empty labels')
    try:
        words: list[str] = values.to_pylist()
    except UnicodeDecodeError as error:
        raise DataError(f'parquet: column "{column}" of {file}: a label is no text: {error}') from None
    return words
