"""The folder of a run: its recipe, its rows of metrics, its checkpoints, with which `--resume` goes on."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from zoo.training.checkpointing import Keeper
from zoo.training.run_folder import Checkpoint
from zoo.training.tracking import NOTES, Notes

from tests.fuzz import mutate
from tests.fuzz.case import Case
from tests.fuzz.kinds import checkpoints
from tests.report_helpers import subject
from zoo.api.facts import training_facts
from zoo.data import ImageDataset, open_dataset
from zoo.ranks import ALONE
from zoo.recipe import Recipe
from zoo.release import history
from zoo.report.figures import draw_one
from zoo.training import RunFolder, Trained, build_objective
from zoo.training.step import Stepper

_RECIPE = "cifar_resnet20.balanced_softmax_digits_lt50"
_CHANGE = {"step": 4, "key": "training.log_every", "from": 10, "to": 20}
_LINES = ("{}", "[1]", "5}", "{'a': 1}", "[" * 99_999 + "}")


@cache
def _recipe() -> Recipe:
    return Recipe.load(_RECIPE)


@cache
def _data() -> ImageDataset:
    return open_dataset(_recipe().data, "train", None)


def _stepper() -> Stepper:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Stepper(build_objective(_recipe(), _data()), _recipe(), 4, torch.device("cpu"))


@cache
def _state() -> dict[str, dict[str, Any]]:
    stepper = _stepper()
    for parameter in stepper.parameters:
        parameter.grad = torch.ones_like(parameter)
    stepper.optimizer.step()
    return stepper.state()


@cache
def _seed() -> dict[str, bytes]:
    """Make a run of two checkpoints; file -> content."""
    with tempfile.TemporaryDirectory() as name:
        run = RunFolder(Path(name))
        run.start(_recipe(), resume=False)
        for step in (4, 8):
            run.log({"step": step, "loss": 1.5, "lr": 0.1})
            run.save(Checkpoint(step, 1.5, _state(), 0.0))
        run.keep_to(_data())
        run.changes_file.write_text(json.dumps(_CHANGE) + "\n")
        (run.path / NOTES).write_text(
            '{"tracker": "wandb", "id": "0123abcd"}\n{"tracker": "wandb", "step": 8}\n'
        )
        (run.path / "unreadable.txt").write_text("a.png\n")
        (run.path / ".holder.json").write_text(json.dumps({"pid": 1, "host": "x", "since": "y"}))
        files = [file for file in Path(name).rglob("*") if file.is_file()]
        return {file.relative_to(name).as_posix(): file.read_bytes() for file in files}


class _Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch fuzz-canary",)


def _content() -> dict[str, Any]:
    state = {part: _copied(values) for part, values in _state().items()}
    return {"format": 2, "step": 8, "seconds": 1.5, "written": 0.0, "state": state}


def _copied(value: Any) -> Any:
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, dict) else value


def _odd_content(random: Random) -> tuple[Any, str]:
    """Change what is saved: its facts, a section, a tensor of the weights or of the optimizer."""
    content, notes = _content(), []
    for _ in range(random.choice((1, 1, 2, 3))):
        optimizer = content["state"].get("optimizer")
        moments = optimizer.get("state") if isinstance(optimizer, dict) else None
        places = [content, content["state"], content["state"].get("objective"), optimizer]
        places += list(moments.values())[:3] if isinstance(moments, dict) else []
        place = random.choice([place for place in places if isinstance(place, dict) and place])
        key = random.choice(list(place))
        way = random.randrange(4)
        if way == 0 and place is not content:
            del place[key]
        elif way == 1 and isinstance(place[key], torch.Tensor):
            try:
                place[key] = random.choice(checkpoints._ODD_TENSORS)(place[key])
            except (RuntimeError, NotImplementedError, IndexError, TypeError):  # of some shapes only
                continue
        elif way == 2:
            place[random.choice((*mutate.WORDS[:60], key, 7, (1,)))] = random.choice(
                (mutate.value(random), torch.zeros(2), *checkpoints._payloads())
            )
        else:
            place[key] = mutate.value(random)
        notes.append(f"{key} way {way}")
        if not isinstance(content.get("state"), dict):
            break
    return content, "; ".join(notes)


def _checkpoint(random: Random, given: bytes) -> tuple[bytes, str]:
    way = random.randrange(8)
    if way == 0:
        payload = random.choice((_Payload(), *checkpoints._payloads()))
        return pickle.dumps(payload, protocol=2), "a pickle that runs code"
    if way < 4:
        stream = io.BytesIO()
        made, note = _odd_content(random) if way < 3 else mutate.tree(random, {"format": 2, "step": 8})
        try:
            torch.save(made, stream, _use_new_zipfile_serialization=random.random() < 0.9)
        except (UnicodeError, RuntimeError, NotImplementedError, TypeError, pickle.PicklingError):
            return b"", "empty"
        return stream.getvalue(), f"other values: {note}"
    if way < 6:
        return _archive(random, given), "archive"
    return mutate.octets(random, given), "bytes"


def _archive(random: Random, given: bytes) -> bytes:
    """Change its pickle or another entry, or compress it."""
    stream = io.BytesIO()
    compression = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with (
        zipfile.ZipFile(io.BytesIO(given)) as archive,
        zipfile.ZipFile(stream, "w", compression) as other,
    ):
        names = archive.namelist()
        index = next(name for name in names if name.endswith("data.pkl"))
        target = random.choice((index, index, random.choice(names)))
        for name in names:
            data = archive.read(name)
            if name == target and compression == zipfile.ZIP_DEFLATED:
                data = bytes(3 << 30) if random.random() < 0.05 else data
            elif name == target and random.random() < 0.5:
                at = random.randrange(2, max(len(data), 3))
                data = data[:at] + random.choice(checkpoints._OPCODES) + data[at:]
            elif name == target:
                data = mutate.octets(random, data)
            entry = zipfile.ZipInfo(name)  # of a fixed time, so that a case is always the same
            entry.compress_type = compression
            other.writestr(entry, data)
    return stream.getvalue()


def _special(random: Random, file: Path) -> str:
    """Put something else in a file's place."""
    file.unlink()
    note = random.choice(("folder", "pipe", "zeros", "loop", "absent", "empty", "device"))
    if note == "folder":
        file.mkdir()
    elif note == "pipe":
        os.mkfifo(file)
    elif note == "zeros":
        with file.open("wb") as stream:
            stream.truncate(50 << 30)
    elif note == "loop":
        file.symlink_to(file.name)
    elif note == "device":
        file.symlink_to("/dev/zero")
    elif note == "empty":
        file.touch()
    return note


def _mutated(random: Random, target: str, file: Path, given: bytes) -> str:
    """Change one file of the run; say how."""
    if random.random() < 0.1:
        return _special(random, file)
    if target.endswith(".jsonl"):
        made, note = mutate.tree(random, [json.loads(line) for line in given.splitlines()])
        if isinstance(made, list) and random.random() < 0.7:
            file.write_bytes(b"\n".join(mutate.to_json(random, row) for row in made) + b"\n")
            return note
        file.write_bytes(mutate.text(random, given.decode(), _LINES))
        return "lines"
    if target.endswith(".json"):
        made, note = mutate.tree(random, json.loads(given))
        file.write_bytes(mutate.to_json(random, made))
        return note
    if target.endswith(".pt"):
        data, note = _checkpoint(random, given)
        file.write_bytes(data)
        if random.random() < 0.75:  # what is hostile may have the right hash
            record = {"format": 2, "step": 8, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            file.with_suffix(".json").write_text(json.dumps(record))
            note += ", recorded"
        return note
    file.write_bytes(mutate.text(random, given.decode()))
    return "text"


def runs(random: Random, folder: Path) -> Case:
    """One file of the run, or several."""
    run = folder / "run"
    for name, content in _seed().items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    names = sorted(_seed())
    newest = [name for name in names if name.endswith(".pt")][-1]
    notes = []
    for _ in range(random.choice((1, 1, 1, 2))):
        texts = [name for name in names if name.endswith("l")]
        target = random.choice((*names, *texts, *[newest] * len(names)))
        file = run / target
        if file.is_file() and not file.is_symlink():
            notes.append(f"{target}: {_mutated(random, target, file, _seed()[target])}")
    stepper = _stepper()

    def resume() -> None:
        with RunFolder(run).locked(), Keeper(RunFolder(run), _recipe(), stepper, ALONE) as keeper:
            step = keeper.begin(resume=True)
            RunFolder(run).keep_to(_data())
            keeper.note_unreadable(["a.png", "b\udcff.png"])
            keeper.log({"step": step + 1, "loss": 1.0})
            keeper.save(step + 1)
        draw_one("curves", [subject(rows=RunFolder(run).rows())], folder / "curves.png")
        trained = Trained(stepper.objective, step, 1, *keeper.ended(step), [])
        training_facts(_recipe(), trained, _data(), changes=RunFolder(run).changes())

    def release() -> None:
        made = history.gather(RunFolder(run).rows(), RunFolder(run).class_rows())
        if made is not None:
            history.check(json.loads(history.to_json(made)), "run")  # which the release would be refused for

    return Case(
        {
            "trackers": lambda: Notes(run / NOTES).of("wandb"),
            "release": release,
            "load": lambda: RunFolder(run).load(),
            "rows": lambda: RunFolder(run).rows(),
            "anew": lambda: RunFolder(run).start(_recipe(), resume=False),
            "resume": resume,
        },
        ("run",),
        "; ".join(notes),
    )
