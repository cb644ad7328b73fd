"""Parquet shards: damaged bytes, other columns, lying headers, and files that unpack to far more."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz import mutate
from tests.fuzz.case import Case
from tests.fuzz.kinds.images import odd, seeds
from zoo.data import DataConfig, open_dataset
from zoo.data.config import Parquet

_NAMES = {"huggingface": json.dumps({"info": {"features": {"label": {"names": ["cat", "dog"]}}}})}


def _written(table: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


def _images(count: int) -> list[bytes]:
    return [seeds()["a.png"], seeds()["a.jpg"]] * (count // 2)


@cache
def _seeds() -> tuple[bytes, ...]:
    struct = pa.array([{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(_images(6))])
    labels = pa.array([0, 1, 0, 1, 0, 1])
    table = pa.table({"img": struct, "label": labels})
    return (
        _written(table),
        _written(table.replace_schema_metadata(_NAMES)),
        _written(pa.table({"img": pa.array(_images(6)), "label": labels}), compression="zstd"),
        _written(table, compression="none", use_dictionary=False, row_group_size=2),
    )


def parquet(random: Random, folder: Path) -> Case:
    """The shards of a split."""
    test = _seeds()[0]
    way, note = random.randrange(6), "bytes"
    if way == 0:
        made, note = _odd_table(random)
    elif way == 1:
        made, note = _bomb(random)
    elif way == 2:
        made, note = _metadata(random), "metadata"
    elif way == 3:  # the footer, where the numbers are
        given = random.choice(_seeds())
        size = 8 + int.from_bytes(given[-8:-4], "little")
        made, note = given[:-size] + mutate.octets(random, given[-size:-8]) + given[-8:], "footer"
    else:
        made = mutate.octets(random, random.choice(_seeds()), _seeds())
    (folder / "train-0.parquet").write_bytes(made)
    if random.random() < 0.3:
        (folder / "train-1.parquet").write_bytes(random.choice(_seeds()))
    (folder / "test-0.parquet").write_bytes(test)

    def read(split: str) -> None:
        dataset = open_dataset(DataConfig(source=Parquet()), split, folder)  # type: ignore[arg-type]
        dataset.describe()
        for index in range(min(len(dataset), 8)):
            dataset.size_of(index)
            dataset.image(index)

    return Case(
        {split: lambda split=split: read(split) for split in ("train", "test")},  # type: ignore[misc]
        (".parquet", 'image "', "parquet"),
        note,
    )


def _odd_table(random: Random) -> tuple[bytes, str]:
    good = _images(4)
    columns: list[tuple[str, Any]] = [
        ("strings", pa.array(["x"] * 4)),
        ("large", pa.array(good, pa.large_binary())),
        ("fixed", pa.array([b"abcd"] * 4, pa.binary(4))),
        ("view", pa.array(good, pa.binary_view())),
        ("lists", pa.array([[1, 2]] * 4)),
        ("dictionary", pa.array(good).dictionary_encode()),
        ("nulls", pa.array([None, good[0], None, b""], pa.binary())),
        ("null column", pa.nulls(4)),
        ("no bytes", pa.array([{"path": "x"}] * 4)),
        ("bytes of words", pa.array([{"bytes": "x", "path": "y"}] * 4)),
        (
            "null sections",
            pa.array([None, {"bytes": good[0], "path": "a"}, None, {"bytes": None, "path": "b"}]),
        ),
        ("path of numbers", pa.array([{"bytes": good[0], "path": 7}] * 4)),
        ("path of bytes", pa.array([{"bytes": good[0], "path": b"\xff"}] * 4)),
        ("path of terminal", pa.array([{"bytes": b"x", "path": "\x1b[2J\n" * 99}] * 4)),
        ("nested", pa.array([{"bytes": {"bytes": good[0]}}] * 4)),
        ("map", pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64()))),
        ("time", pa.array([1] * 4, pa.timestamp("ns"))),
        ("odd image", pa.array([_bytes_of(random), *good[1:]])),
    ]
    labels: list[tuple[str, Any]] = [
        ("bool", pa.array([True, False] * 2)),
        ("huge", pa.array([0, 1, 2**62, 1])),
        ("large", pa.array([0, 1, 3_000_000_000, 1])),
        ("unsigned", pa.array([0, 1, 2**64 - 1, 1], pa.uint64())),
        ("negative", pa.array([0, -1, 1, 1])),
        ("null", pa.array([0, None, 1, 1])),
        ("float", pa.array([0.0, 1.0, 0.0, 1.0])),
        ("decimal", pa.array([0, 1, 0, 1], pa.decimal128(5))),
        ("words", pa.array(["a", "b", "a", "b"])),
        ("dictionary", pa.array([0, 1, 0, 1]).dictionary_encode()),
        ("lists", pa.array([[0], [1], [0], [1]])),
        ("empty", pa.array([], pa.int64())),
        ("small", pa.array([0, 1, 0, 1], pa.int8())),
    ]
    (what, column), (kind, numbers) = random.choice(columns), random.choice(labels)
    if random.random() < 0.5:
        what, column = "good", pa.array(good)
    elif random.random() < 0.7:
        kind, numbers = "good", pa.array([0, 1, 0, 1])
    names = random.choice(
        (["img", "label"], ["img", "label"], ["img", "label"], ["image", "label"], ["img", "img"])
    )
    if len(numbers) != len(column):
        column = column.slice(0, len(numbers))
    note = f"images: {what}, labels: {kind}, columns {names}"
    return _written(pa.Table.from_arrays([column, numbers], names)), note


def _bytes_of(random: Random) -> bytes:
    _, made = odd(random)
    return made if isinstance(made, bytes) else b"x"


@cache
def _bomb_of(what: str) -> bytes:
    count, zeros = 3000, pa.array(np.zeros(3000, "int8"))
    if what == "3 GB of one image":
        blob = pa.array([bytes(1 << 20)])
        column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, "int32")), blob)
    elif what == "40 million rows":
        zeros = pa.array(np.zeros(40_000_000, "int8"))
        column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(zeros), "int32")), pa.array([b"x"]))
    elif what == "one image of 400 MB":
        column, zeros = pa.array([bytes(400 << 20)]), zeros[:1]
    else:
        paths = pa.array(["p" * 100_000] * count)
        column = pa.StructArray.from_arrays([pa.array([b"x"] * count), paths], ["bytes", "path"])
    table = pa.table({"img": column, "label": zeros})
    return _written(table, compression="zstd", store_schema=False)  # else it is read as a dictionary


_BOMBS = ("3 GB of one image", "40 million rows", "one image of 400 MB", "300 MB of paths")


def _bomb(random: Random) -> tuple[bytes, str]:
    if random.random() < 0.9:  # they are slow to read, and there are few
        return mutate.octets(random, _seeds()[3], _seeds()), "bytes"
    what = random.choice(_BOMBS)
    return _bomb_of(what), what


def _metadata(random: Random) -> bytes:
    features, _ = mutate.tree(random, json.loads(_NAMES["huggingface"]))
    text = mutate.to_json(random, features)
    if random.random() < 0.2:
        text = random.choice((b"[" * 100_000, b'{"info":' * 50_000, b"\xff", b"", b"9" * 5000, b"NaN"))
    table = pa.table({"img": pa.array(_images(4)), "label": [0, 1, 0, 1]})
    return _written(table.replace_schema_metadata({b"huggingface": text}))
