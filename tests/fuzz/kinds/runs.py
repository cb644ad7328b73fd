"""The folder of a run: its recipe, its rows of metrics, its checkpoints, with which `--resume` goes on."""

from __future__ import annotations

import io
import json
import os
import pickle
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from random import Random

import torch

from tests.fuzz import mutate
from tests.fuzz.case import Case
from zoo.training import Recipe, RunFolder
from zoo.training.run import Checkpoint

_RECIPE = "cifar_resnet20.paco_digits_lt50"


@cache
def _recipe() -> Recipe:
    return Recipe.load(_RECIPE)


@cache
def _seed() -> dict[str, bytes]:
    """Make a run of two checkpoints; file -> content."""
    with tempfile.TemporaryDirectory() as name:
        run = RunFolder(Path(name))
        run.start(_recipe(), resume=False)
        for step in (4, 8):
            run.log({"step": step, "loss": 1.5, "lr": 0.1})
            weights = {"encoder.weight": torch.arange(12.0).reshape(3, 4), "queue": torch.zeros(2, 2)}
            optimizer = {"state": {0: {"momentum_buffer": torch.ones(3, 4)}}, "param_groups": [{"lr": 0.1}]}
            run.save(Checkpoint(step, 1.5, {"objective": weights, "optimizer": optimizer}))
        files = [file for file in Path(name).rglob("*") if file.is_file()]
        return {file.relative_to(name).as_posix(): file.read_bytes() for file in files}


class _Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch fuzz-canary",)


def _checkpoint(random: Random, given: bytes) -> tuple[bytes, str]:
    way = random.randrange(6)
    if way == 0:
        return pickle.dumps(_Payload(), protocol=2), "a pickle that runs code"
    if way == 1:
        stream = io.BytesIO()
        plain = {"format": 1, "step": mutate.value(random), "seconds": 1.0, "state": mutate.value(random)}
        try:
            torch.save(plain, stream)
        except (UnicodeError, RuntimeError):
            return b"", "empty"
        return stream.getvalue(), "other values in a plain torch archive"
    if way == 2 and zipfile.is_zipfile(io.BytesIO(given)):
        stream = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(given)) as archive,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as other,
        ):
            target = random.choice(archive.namelist())
            for name in archive.namelist():
                other.writestr(
                    name, bytes(3 << 30) if name == target and random.random() < 0.05 else archive.read(name)
                )
        return stream.getvalue(), "compressed"
    return mutate.octets(random, given), "bytes"


def runs(random: Random, folder: Path) -> Case:
    """One file of the run, or several."""
    run = folder / "run"
    for name, content in _seed().items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    checkpoints = [name for name in _seed() if name.startswith("checkpoints/")]
    target = random.choice(("recipe.yaml", "metrics.jsonl", "metrics.jsonl", *checkpoints, *checkpoints))
    file, given = run / target, _seed()[target]
    way, note = random.randrange(10), "bytes"
    if way == 0:
        file.unlink()
        note = random.choice(("folder", "pipe", "zeros", "loop", "absent", "empty"))
        if note == "folder":
            file.mkdir()
        elif note == "pipe":
            os.mkfifo(file)
        elif note == "zeros":
            with file.open("wb") as stream:
                stream.truncate(50 << 30)
        elif note == "loop":
            file.symlink_to(file.name)
        elif note == "empty":
            file.touch()
    elif target == "metrics.jsonl":
        rows = [json.loads(line) for line in given.splitlines()]
        made, note = mutate.tree(random, rows)
        if isinstance(made, list) and random.random() < 0.7:
            file.write_bytes(b"\n".join(mutate.to_json(random, row) for row in made) + b"\n")
        else:
            file.write_bytes(
                mutate.text(random, given.decode(), ("{}", "[1]", "5}", "{'a': 1}", "[" * 99_999 + "}"))
            )
            note = "lines"
    elif target == "recipe.yaml":
        file.write_bytes(mutate.text(random, given.decode()))
    else:
        made_bytes, note = _checkpoint(random, given)
        file.write_bytes(made_bytes)
    return Case(
        {
            "load": lambda: RunFolder(run).load(),
            "rows": lambda: RunFolder(run).rows(),
            "resume": lambda: RunFolder(run).start(_recipe(), resume=True),
            "anew": lambda: RunFolder(run).start(_recipe(), resume=False),
        },
        ("run",),
        f"{target}: {note}",
    )
