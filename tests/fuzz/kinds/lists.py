"""List files and names of classes; labels and counts of a conversion."""

from __future__ import annotations

import io
import os
from functools import cache
from pathlib import Path
from random import Random

import torch
from PIL import Image

import zoo
from tests import convert_helpers
from tests.fuzz import mutate
from tests.fuzz.case import Case
from zoo.data import DataConfig, open_dataset
from zoo.data.config import ListFiles

_COUNT, _CLASSES = 6, 3
_LINES = (
    *(
        "a b 0",
        "/dev/zero 0",
        "../../../etc/passwd 1",
        "0.png -1",
        "0.png 1.0",
        "0.png 1e3",
        "0.png ٣",
        "0.png",
    ),
    *(
        "0.png 9223372036854775807",
        "0.png 99999999999999999999999",
        "0.png 3000000000",
        "0.png 100000000",
        " 0",
    ),
    *(
        "0.png 1",
        "nothing.png 2",
        ". 0",
        "0.png\t1",
        "0.png  1",
        "\x0c0.png 1",
        "0.png 1 ",
        "\ufeff0.png 1",
        "a\0b 1",
    ),
    *(
        "0.png 007",
        f"0.png {'1' * 5000}",
        "x" * 5000 + ".png 0",
        "pipe 0",
        "folder 0",
        "link 1",
        "é.png 0",
        '"0.png" 0',
    ),
)


def lists(random: Random, folder: Path) -> Case:
    """The lists of training and test images, the names of the classes, odd files in the folder of images."""
    for number in range(_COUNT):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    rows = "".join(f"{number}.png {number % _CLASSES}\n" for number in range(_COUNT))
    texts = {"train.txt": rows, "test.txt": rows, "names.txt": "cat\ndog\nbird\n"}
    target, note = random.choice(("train.txt", "train.txt", "test.txt", "names.txt")), "lines"
    for name, given in texts.items():
        (folder / name).write_text(given)
    way = random.randrange(10)
    if way == 0:
        note = _replaced(random, folder / target)
    elif way < 4:
        (folder / target).write_bytes(mutate.octets(random, texts[target].encode(), [b"\0", rows.encode()]))
    else:
        (folder / target).write_bytes(mutate.text(random, texts[target], _LINES))
    named = random.random() < 0.5 or target == "names.txt"
    source = ListFiles(train="train.txt", test="test.txt", class_names="names.txt" if named else None)

    def read(split: str) -> None:
        dataset = open_dataset(DataConfig(source=source), split, folder)  # type: ignore[arg-type]
        dataset.describe()
        for index in range(min(len(dataset), 8)):
            dataset.size_of(index)
            dataset.image(index)

    return Case(
        {split: lambda split=split: read(split) for split in ("train", "test")},  # type: ignore[misc]
        ("train.txt", "test.txt", "names.txt", "image ", "list"),
        f"{target}: {note}",
    )


def _replaced(random: Random, file: Path) -> str:
    file.unlink()
    kind = random.choice(("folder", "pipe", "zeros", "loop", "absent", "device"))
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "zeros":
        with file.open("wb") as stream:
            stream.truncate(50 << 30)
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    return kind


@cache
def _checkpoint() -> bytes:
    model = convert_helpers.randomised(convert_helpers.PaCo())
    stream = io.BytesIO()
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 12, "arch": "resnet", "state_dict": state}, stream)
    return stream.getvalue()


def counts(random: Random, folder: Path) -> Case:
    """`zoo convert --labels FILE --class-counts FILE`."""
    (folder / "paco.pth").write_bytes(_checkpoint())
    texts = {
        "labels.txt": "cat\ndog\nbird\nfish\nant\nbee\nfly\n",
        "counts.txt": "70\n60\n50\n40\n30\n20\n10\n",
    }
    target, note = random.choice(tuple(texts)), "lines"
    for name, given in texts.items():
        (folder / name).write_text(given)
    way = random.randrange(8)
    if way == 0:
        note = _replaced(random, folder / target)
    elif way < 3:
        (folder / target).write_bytes(mutate.octets(random, texts[target].encode()))
    else:
        odd = (
            "-1",
            "1.5",
            "1e3",
            "٣",
            "9" * 25,
            "9" * 5000,
            "9223372036854775808",
            "0",
            "²",
            "digits",
            "folder:.",
        )
        (folder / target).write_bytes(mutate.text(random, texts[target], odd))
    given = {"labels": str(folder / "labels.txt"), "class_counts": str(folder / "counts.txt")}

    def convert() -> None:
        release = zoo.convert(folder / "paco.pth", "paco", folder / "out", arch="cifar_resnet20", **given)
        zoo.open(release.path).load(head="centers")

    return Case({"convert": convert}, ("labels", "counts", "class counts"), f"{target}: {note}")
