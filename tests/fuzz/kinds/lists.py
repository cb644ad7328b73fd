"""List files, names of classes, candidates; labels and counts of a conversion."""

from __future__ import annotations

import io
import os
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from PIL import Image

import zoo
from tests import convert_helpers
from tests.fuzz import mutate
from tests.fuzz.case import Case
from zoo.data import DataConfig, open_dataset
from zoo.data.config import CandidatesFile, ListFiles

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


def candidates(random: Random, folder: Path) -> Case:
    """Partial labels: a `.npy` matrix for the images of a list."""
    labels = [number % _CLASSES for number in range(_COUNT)]
    for number in range(_COUNT):
        Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    rows = "".join(f"{number}.png {label}\n" for number, label in enumerate(labels))
    (folder / "train.txt").write_text(rows)
    matrix = np.eye(_CLASSES)[labels].astype(random.choice(("bool", "uint8", "int64", "float32", "float64")))
    stream, file, note = io.BytesIO(), folder / "candidates.npy", "bytes"
    if random.random() < 0.25:
        matrix, note = _odd_matrix(random), "an odd matrix"
    np.save(stream, matrix, allow_pickle=True)
    content = stream.getvalue()
    way = random.randrange(8)
    if way == 0:
        note = _replaced(random, _touched(file))
    elif way == 1:  # a header that lies
        header = random.choice(_HEADERS).encode()
        content = content[:8] + len(header).to_bytes(2, "little") + header + content[-64:]
        file.write_bytes(content)
    elif way == 2:
        np.savez(folder / "a.npz", matrix)
        (folder / "a.npz").replace(file)
    else:
        file.write_bytes(mutate.octets(random, content))
    config = DataConfig(
        source=ListFiles(train="train.txt", test="train.txt"), partial_labels=CandidatesFile(path=file.name)
    )

    def read() -> None:
        open_dataset(config, "train", folder).describe()

    return Case({"read": read}, ("candidates.npy", "partial_labels"), note)


_HEADERS = (
    "{'descr': '|b1', 'fortran_order': False, 'shape': (1000000000000, 3), }",
    "{'descr': '|b1', 'fortran_order': False, 'shape': (6, 3000000000000000000000), }",
    "{'descr': '|b1', 'fortran_order': False, 'shape': (-6, 3), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (6, 3), }",
    "{'descr': '|V1000000000', 'fortran_order': False, 'shape': (6, 3), }",
    "{'descr': [('a', '|b1')], 'fortran_order': True, 'shape': (6, 3), }",
    "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (6, 1), }",
    "{'descr': '<c16', 'fortran_order': False, 'shape': (6, 3), }",
    "{'descr': '|b1', 'fortran_order': False, 'shape': (), }",
    "{'descr': '|b1', 'fortran_order': False, 'shape': 'x', }",
    "__import__('os').putenv('ZOO_FUZZ_CANARY', '1')",
    "(" * 5000,
    "{'descr': ''.join, 'shape': 1}",
    "{" * 200 + "}" * 200,
)


def _odd_matrix(random: Random) -> np.ndarray:
    shape = random.choice(((6, 3), (6, 4), (3, 6), (18,), (6, 3, 1), (0, 3), (6, 0), ()))
    kind = random.choice(("object", "U3", "S3", "complex64", "datetime64[s]", "float16", "uint64", "bool"))
    with np.errstate(all="ignore"):
        matrix = np.ones(shape, "float64") * random.choice((0, 1, 2, -1, np.nan, np.inf))
        return matrix.astype("int64").astype(kind) if kind.startswith("datetime") else matrix.astype(kind)


def _touched(file: Path) -> Path:
    file.touch()
    return file


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
