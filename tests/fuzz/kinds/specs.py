"""Data specs of the command line, and names of releases."""

from __future__ import annotations

from pathlib import Path
from random import Random

import zoo
from tests.fuzz import mutate
from tests.fuzz.case import Case
from zoo.data import open_dataset, parse_data_spec
from zoo.hub import resolve as resolved

_SPECS = (
    *("digits", "digits?imbalance=10", "digits?imbalance=10&seed=3&max_per_class=9&profile=step", "folder:."),
    *(
        "list:.?train=a.txt&test=b.txt",
        "parquet:.?label=fine",
        "cifar10:.?download=false",
        "cifar100:/nowhere",
    ),
)
_NAMES = (
    "paco_digits",
    "./r",
    "org/name",
    "hf-hub:org/name@v1",
    "shipped:x",
    "https://huggingface.co/a/b",
    "..",
)


def specs(random: Random, folder: Path) -> Case:
    """`--data KIND:DIR?key=value`, and names of releases; nothing is asked of the Hub."""
    text = mutate.text(random, random.choice(_SPECS), _SPECS).decode("utf-8", "replace")
    for place in range(len(text) - 1, -1, -1):
        if text[place] in "=&?:" and random.random() < 0.3:
            text = text[: place + 1] + str(mutate.value(random))[:2000] + text[place + 1 :]
    name = mutate.text(random, random.choice(_NAMES), _NAMES).decode("utf-8", "replace")

    def read() -> None:
        config, root = parse_data_spec(text)
        if config.source.kind == "digits" or root is not None:
            open_dataset(config, "train", folder / root if root else None)

    def resolve() -> None:
        reading = resolved(name)
        if reading.path is not None:
            zoo.open(name)

    return Case({"data": read, "name": resolve}, (), f"{text!r} {name!r}"[:300])
