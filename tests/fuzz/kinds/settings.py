"""What a person configures once, and data specs of the command line."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import zoo
from tests.fuzz import mutate
from tests.fuzz.case import Case
from zoo import settings as user
from zoo.data import open_dataset, parse_data_spec
from zoo.release import names

_LINES = (
    *(
        "namespace: my-org",
        "namespace: [a]",
        "namespace: a/b",
        "namespace: -x",
        "namespace: \n",
        "namespce: x",
    ),
    *(
        "namespace: null",
        'namespace: ""',
        "namespace: 5",
        "namespace: !!python/name:os.system",
        "namespace: 'ü'",
    ),
)


def settings(random: Random, folder: Path) -> Case:
    """`~/.config/zoo/config.yaml`."""
    file = folder / "zoo" / "config.yaml"
    file.parent.mkdir()
    way, note = random.randrange(10), "text"
    if way == 0:
        note = random.choice(("folder", "pipe", "zeros", "loop", "device"))
        if note == "folder":
            file.mkdir()
        elif note == "pipe":
            os.mkfifo(file)
        elif note == "zeros":
            with file.open("wb") as stream:
                stream.truncate(50 << 30)
        else:
            file.symlink_to(file.name if note == "loop" else "/dev/zero")
    elif way < 4:
        file.write_bytes(mutate.octets(random, b"# mine\nnamespace: my-org\n"))
    elif way < 6:
        file.write_bytes(mutate.to_yaml(random, mutate.tree(random, {"namespace": "my-org"})[0]))
    else:
        file.write_bytes(mutate.text(random, "# mine\nnamespace: my-org\n", (*mutate._YAML_LINES, *_LINES)))

    def read() -> None:
        earlier = os.environ.get("XDG_CONFIG_HOME")
        os.environ["XDG_CONFIG_HOME"] = str(folder)
        try:
            user.namespace()
        finally:
            if earlier is None:
                del os.environ["XDG_CONFIG_HOME"]
            else:
                os.environ["XDG_CONFIG_HOME"] = earlier

    return Case({"read": read}, ("config.yaml",), note)


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
        reading = names.resolve(name)
        if reading.path is not None:
            zoo.open(name)

    return Case({"data": read, "name": resolve}, (), f"{text!r} {name!r}"[:300])
