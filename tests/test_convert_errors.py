"""What a conversion refuses: each one clear line, before anything is written and without running the file."""

from __future__ import annotations

import argparse
import errno
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

import zoo
from tests import convert_helpers as made
from zoo.errors import ReleaseError, ZooError
from zoo.release.convert import FAMILIES
from zoo.release.convert.reading import read_checkpoint

PACO = "cifar_resnet20"


@pytest.fixture(scope="module")
def paco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = made.randomised(made.PaCo())
    return made.save(tmp_path_factory.mktemp("files") / "paco.pth.tar", model)


def changed(file: Path, target: Path, change: Any) -> Path:
    content = torch.load(file)
    change(content["state_dict"])
    torch.save(content, target)
    return target


def refusal(file: Path, family: str, tmp_path: Path, arch: str | None = PACO, **options: Any) -> str:
    """The error's one line; nothing is written."""
    out = tmp_path / "out"
    with pytest.raises(ZooError) as caught:
        zoo.convert(file, family, out, arch=arch, **options)
    assert not out.exists()
    assert not list(tmp_path.glob(".*"))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_unknown_keys_are_all_listed(paco: Path, tmp_path: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        state["module.extra.weight"] = torch.zeros(2)
        state["module.scale"] = torch.zeros(())

    message = refusal(changed(paco, tmp_path / "f.pth", change), "paco", tmp_path)
    assert "2 of" in message
    assert "extra.weight, scale" in message
    assert "--leave-out" in message


def test_many_unknown_keys_are_listed_by_group_with_counts(paco: Path, tmp_path: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        for index in range(40):
            state[f"decoder.blocks.{index}.weight"] = torch.zeros(1)
        state["mask"] = torch.zeros(1)

    message = refusal(changed(paco, tmp_path / "f.pth", change), "paco", tmp_path)
    assert "41 of" in message
    assert "decoder.blocks.* (40), mask" in message


def test_unknown_keys_are_left_out_when_they_are_named(paco: Path, tmp_path: Path) -> None:
    file = changed(paco, tmp_path / "f.pth", lambda state: state.update({"decoder.weight": torch.zeros(1)}))
    release = zoo.convert(file, "paco", tmp_path / "out", arch=PACO, leave_out=["decoder.*"])
    assert release.recipe["converted"]["left_out"]["left out on request"] == "decoder.weight"
    message = refusal(file, "paco", tmp_path / "new", leave_out=["decodr.*"])
    assert 'no key of the file matches "decodr.*"' in message


def test_a_tensor_beside_the_state_dict_is_no_less_unknown(paco: Path, tmp_path: Path) -> None:
    content = torch.load(paco)
    content["teacher"] = {"weight": torch.zeros(3)}
    torch.save(content, tmp_path / "f.pth")
    assert "teacher.weight" in refusal(tmp_path / "f.pth", "paco", tmp_path)


def test_two_encoders_of_one_kind_are_not_mixed(tmp_path: Path) -> None:
    model: Any = made.SoloLearnMoCo()
    model.encoder = torchvision.models.resnet18()  # as versions before 1.0.4 name the backbone
    model.encoder.fc = nn.Identity()
    message = refusal(made.save_lightning(tmp_path / "f.ckpt", model), "solo-learn", tmp_path)
    assert "120 of" in message
    assert "encoder.conv1.weight, encoder.bn1.* (5), encoder.layer1.* (24)" in message


def test_missing_keys_are_listed(paco: Path, tmp_path: Path) -> None:
    key = "module.encoder_q.layer3.2.bn2.running_var"
    message = refusal(changed(paco, tmp_path / "f.pth", lambda s: s.pop(key)), "paco", tmp_path)
    assert "missing: layer3.2.bn2.running_var" in message


def test_another_shape_is_named_with_what_fits(paco: Path, tmp_path: Path) -> None:
    message = refusal(paco, "paco", tmp_path, arch="cifar_resnet32")
    assert "the encoder is no cifar_resnet32: missing: layer1.3.* (12), " in message
    assert message.endswith("What fits: --arch cifar_resnet20")
    key = "module.encoder_q.conv1.weight"
    file = changed(paco, tmp_path / "f.pth", lambda state: state.update({key: torch.zeros(16, 3, 5, 5)}))
    message = refusal(file, "paco", tmp_path)
    assert "other shape: conv1.weight is [16, 3, 5, 5] instead of [16, 3, 3, 3]" in message


def test_an_argument_that_the_family_implies_leads_to_the_architecture_that_has_it(tmp_path: Path) -> None:
    file = made.save_lightning(tmp_path / "solo.ckpt", made.SoloLearnMoCo())
    message = refusal(file, "solo-learn", tmp_path, arch="resnet18")
    assert "conv1.weight is [64, 3, 3, 3] instead of [64, 3, 7, 7]" in message
    assert message.endswith("What fits: --arch resnet18_cifar")


FILES: dict[str, Any] = {
    "moco": lambda path: made.save(path, made.MoCo()),
    "moco-v3": lambda path: made.save(path, made.MoCoV3()),
    "paco": lambda path: made.save(path, made.PaCo()),
    "gpaco": lambda path: made.save(path, made.PaCo(generalised=True)),
    "ft": lambda path: made.save_ft(path, made.SingleHead(), made.SingleHead()),
    "pico": lambda path: made.save(path, made.PiCO()),
    "solo-learn": lambda path: made.save_lightning(path, made.SoloLearnMoCo()),
}


@pytest.mark.parametrize("family", FILES)
def test_a_wrong_family_is_told_the_right_one(tmp_path: Path, family: str) -> None:
    file = FILES[family](tmp_path / "file.pth")
    for other in FAMILIES.keys() - {family}:
        if (family, other) == ("solo-learn", "lightly"):
            continue  # both say `backbone`; see below
        assert f"Its layout is that of --family {family}" in refusal(file, other, tmp_path), other


def test_solo_learn_under_lightly_is_refused_by_its_heads(tmp_path: Path) -> None:
    message = refusal(FILES["solo-learn"](tmp_path / "file.pth"), "lightly", tmp_path)
    assert "classifier.weight" in message
    assert "--family solo-learn" in message


def test_unknown_names_are_answered_with_the_nearest(paco: Path, tmp_path: Path) -> None:
    assert 'Did you mean "moco-v3"?' in refusal(paco, "mocov3", tmp_path)
    assert 'Did you mean "resnet50"?' in refusal(paco, "paco", tmp_path, arch="resnet5O")
    assert "expected query or momentum" in refusal(paco, "paco", tmp_path, encoder="key")
    assert "interpolation" in refusal(paco, "paco", tmp_path, interpolation="cubic")
    assert "crop_pct" in refusal(paco, "paco", tmp_path, crop_pct=1.5)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mean": (math.nan, 0.5, 0.5)}, '"mean.0": found nan (float), expected a finite number'),
        ({"std": np.array([1.0, math.inf, 1.0])}, '"std.1": found inf (float), expected a finite number'),
        ({"std": (1.0, 0.0, 1.0)}, '"std.1": found 0.0 (float), expected greater than 0'),
        ({"std": (1.0, 1.0)}, '"std": found [1.0, 1.0] (list), List should have at least 3 items'),
        ({"mean": ()}, '"mean": found [] (list), List should have at least 3 items'),
        ({"mean": ("0.5", 0.5, 0.5)}, "\"mean.0\": found '0.5' (str), expected a valid number"),
        ({"mean": np.full((3, 1), 0.5)}, '"mean.0": found [0.5] (list), expected a valid number'),
        ({"mean": 0.5}, '"mean": found [0.5] (list), List should have at least 3 items'),
        ({"size": "32"}, "\"input_size\": found '32' (str), expected a valid integer"),
        ({"class_counts": ["1"] * 7}, "class counts: found '1' of class 0, expected a whole number from 0"),
        ({"class_counts": [1, 2**63]}, "class counts: found 9223372036854775808 of class 1"),
        ({"class_counts": [1.0, 2.0]}, "class counts: found 1.0 of class 0"),
        ({"class_counts": np.array([0.5])}, "class counts: found 0.5 of class 0"),
        ({"class_counts": [True] * 7}, "class counts: found True of class 0"),
        (
            {"class_counts": [1, 2, 3, -4]},
            "class counts: found -4 of class 3, expected a whole number",
        ),
        ({"class_counts": 7}, "class counts: found 7, expected one number for each class"),
        (
            {"labels": ["a", "M\udce4use"]},
            'labels: the one of class 1 is "M\\udce4use", expected words in UTF-8',
        ),
    ],
)
def test_the_first_wrong_number_is_named_before_the_file_is_read(
    given: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ZooError) as error:
        zoo.convert(tmp_path / "none.pth", "paco", tmp_path / "out", arch=PACO, **given)
    assert expected in str(error.value)


def test_numbers_may_come_as_arrays(paco: Path, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"mean": np.full(3, 0.5, dtype=np.float32), "class_counts": np.arange(7)}
    arrays["labels"] = np.array([*"abcdefg"])
    release = zoo.convert(paco, "paco", tmp_path / "out", arch=PACO, **arrays)
    assert release.preprocess.mean == (0.5, 0.5, 0.5)
    assert release.require_centers().class_counts.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert release.class_names == (*"abcdefg",)


def test_an_encoder_that_the_file_lacks(tmp_path: Path) -> None:
    file = made.save(tmp_path / "gpaco.pth", made.PaCo(generalised=True))
    message = refusal(file, "gpaco", tmp_path, encoder="momentum")
    assert "holds no momentum encoder, only query encoder, centers" in message


def test_labels_and_counts_have_to_be_as_many_as_the_centers(paco: Path, tmp_path: Path) -> None:
    assert "found 2 labels, expected 7" in refusal(paco, "paco", tmp_path, labels=["a", "b"])
    assert "found 2 class counts, expected 7" in refusal(paco, "paco", tmp_path, class_counts=[1, 2])
    assert "no data spec" in refusal(paco, "paco", tmp_path, labels="labels.txt")
    for folder in (tmp_path, str(tmp_path)):
        assert refusal(paco, "paco", tmp_path, labels=folder) == (
            f"labels: {tmp_path}: found a folder, expected a text file with one a line, or a data spec, "
            f"KIND:DIR; that of images in folders of their class is folder:{tmp_path}"
        )
    (tmp_path / "counts.txt").write_text("12\nmany\n")
    assert 'found "many"' in refusal(paco, "paco", tmp_path, class_counts=tmp_path / "counts.txt")
    moco = made.save(tmp_path / "moco.pth", made.MoCo())
    message = refusal(moco, "moco", tmp_path, arch="resnet18", class_counts=[1, 2])
    assert "the file has no centers" in message


def test_a_folder_named_like_a_data_set_does_not_hide_it(
    paco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "parquet"):
        Path(name).mkdir()
    assert "found 10 labels, expected 7" in refusal(paco, "paco", tmp_path, labels="digits")
    assert "found 10 class counts" in refusal(paco, "paco", tmp_path, class_counts="digits")
    assert "found a folder" in refusal(paco, "paco", tmp_path, labels=Path("digits"))
    assert "parquet: found a folder" in refusal(paco, "paco", tmp_path, labels="parquet")


def test_a_release_is_not_overwritten(paco: Path, tmp_path: Path) -> None:
    zoo.convert(paco, "paco", tmp_path / "out", arch=PACO)
    with pytest.raises(ReleaseError, match="holds a release already"):
        zoo.convert(paco, "paco", tmp_path / "out", arch=PACO)


def test_weights_that_are_not_finite_are_refused(paco: Path, tmp_path: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        state["module.encoder_q.bn1.weight"][3] = float("nan")

    message = refusal(changed(paco, tmp_path / "f.pth", change), "paco", tmp_path)
    assert "the weights are not finite: bn1.weight" in message


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_one_error(paco: Path, tmp_path: Path, zipped: bool, kept: float) -> None:
    torch.save(torch.load(paco), tmp_path / "f.pth", _use_new_zipfile_serialization=zipped)
    data = (tmp_path / "f.pth").read_bytes()
    (tmp_path / "f.pth").write_bytes(data[: int(kept * len(data))])
    assert "f.pth: " in refusal(tmp_path / "f.pth", "paco", tmp_path)


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    expected = "expected a file that torch.save or safetensors wrote"
    message = refusal(tmp_path / "folder", "moco", tmp_path)
    assert message == f"{tmp_path / 'folder'}: found a folder, {expected}"
    (tmp_path / "f.safetensors").write_bytes(b"\x08" + bytes(7) + b"{" * 8)
    assert "f.safetensors: damaged safetensors: " in refusal(tmp_path / "f.safetensors", "moco", tmp_path)
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    assert "found a list, expected a dict" in refusal(tmp_path / "list.pth", "moco", tmp_path)
    torch.save({"epoch": 3, "optimizer": {}}, tmp_path / "none.pth")
    assert "holds no weights: found epoch, optimizer" in refusal(tmp_path / "none.pth", "moco", tmp_path)
    assert "no such file" in refusal(tmp_path / "absent.pth", "moco", tmp_path)


@pytest.mark.parametrize("name", ["f.pth", "f.safetensors"])
def test_a_file_that_may_not_be_read_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:  # as it does to whoever is not root
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    file = made.save(tmp_path / name, made.MoCo())
    monkeypatch.setattr(Path, "open", refuse)
    message = refusal(file, "moco", tmp_path, arch="resnet18")
    assert message.startswith(f"{file}: cannot be read: [Errno 13] Permission denied")


@pytest.mark.parametrize("name", ["f.pth", "f.safetensors"])
def test_all_junk_is_told_in_the_same_words(name: str, tmp_path: Path) -> None:
    draw, file = random.Random(0), tmp_path / name
    said = {"": set[str](), "\x80\x02": set[str](), "PK": set[str]()}
    for size in (3, 30, 300) * 10:
        for start, texts in said.items():
            junk = b"<" + draw.randbytes(size)
            file.write_bytes(start.encode("latin-1") + junk)
            texts.add(refusal(file, "moco", tmp_path).removeprefix(f"{file}: "))
    assert said.pop("") == {
        "no checkpoint: its first bytes are of no zip archive, pickle or safetensors; expected a file that "
        "torch.save or safetensors wrote"
    }
    expected = "damaged, or no checkpoint: it begins as a {}, and does not go on as torch.save writes one"
    if name == "f.pth":
        assert said == {"\x80\x02": {expected.format("pickle")}, "PK": {expected.format("zip archive")}}


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_a_protocol_that_torch_does_not_read_is_told_so(tmp_path: Path, zipped: bool) -> None:
    content, file = {"a": torch.zeros(2)}, tmp_path / "f.pth"
    torch.save(content, file, pickle_protocol=4, _use_new_zipfile_serialization=zipped)
    message = refusal(file, "moco", tmp_path)
    assert "a pickle of protocol 4 or 5, expected 2" in message
    assert message.endswith("again: torch.save(torch.load(FILE, weights_only=False), NEW_FILE)")
    torch.save(torch.load(file, weights_only=False), tmp_path / "new.pth")
    assert [*read_checkpoint(tmp_path / "new.pth").tensors] == ["a"]


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_torch_has_not_written_is_told_so(tmp_path: Path, protocol: int) -> None:
    weights = {"a": torch.zeros(2)}
    for content in (weights, OrderedDict(weights), {"a": np.zeros(2)}, [weights]):
        (tmp_path / "f.pth").write_bytes(pickle.dumps(content, protocol))
        message = refusal(tmp_path / "f.pth", "moco", tmp_path)
        assert "f.pth: a pickle of pickle.dump, which is no checkpoint; expected a file that torch" in message


class Hostile:
    """Unpickling this creates a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


class Sneaky(Hostile):
    """The same through the state of a class that authors save and that is let through."""

    def __reduce__(self) -> tuple[Any, ...]:
        return argparse.Namespace, (), {"__class__": Hostile(self.marker)}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", [Hostile, Sneaky])
def test_a_hostile_pickle_does_not_run(tmp_path: Path, zipped: bool, kind: type[Hostile]) -> None:
    marker, file = tmp_path / "marker", tmp_path / "f.pth"
    content = {**made.MoCo().state_dict(), "payload": kind(marker)}
    torch.save({"state_dict": content}, file, _use_new_zipfile_serialization=zipped)
    message = refusal(file, "moco", tmp_path, arch="resnet18")
    assert "would run code" in message
    assert '"posix.system"' in message
    assert not marker.exists()
    pickle.loads(pickle.dumps(Hostile(marker)))  # the payload is a working one
    assert marker.exists()


def test_a_class_of_the_authors_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"state_dict": made.MoCo().state_dict(), "model_object": nn.Linear(2, 2)}, tmp_path / "f.pth")
    message = refusal(tmp_path / "f.pth", "moco", tmp_path, arch="resnet18")
    assert '"torch.nn.modules.linear.Linear"' in message
    assert "torch.save(" in message  # how to save the tensors alone


@pytest.mark.parametrize("zipped", [True, False])
def test_settings_and_numpy_numbers_beside_the_weights_are_read_as_nothing(
    tmp_path: Path, zipped: bool
) -> None:
    model: Any = made.randomised(made.MoCo())
    content = {
        "state_dict": model.state_dict(),
        "args": argparse.Namespace(lr=0.03, path=Path("data"), __setstate__="not called"),
        "opt": argparse.Namespace(nested=argparse.Namespace(a=1)),
        "best_acc1": np.float64(67.5),
        "history": np.arange(3.0),
        "epoch": 199,
    }
    torch.save(content, tmp_path / "f.pth", _use_new_zipfile_serialization=zipped)
    release = zoo.convert(tmp_path / "f.pth", "moco", tmp_path / "out", arch="resnet18", size=64)
    left_out = release.recipe["converted"]["left_out"]
    assert left_out["settings of the training"] == "args, opt"
    assert left_out["not weights"] == "best_acc1, history"


def test_an_inert_object_where_a_tensor_should_be_is_refused(paco: Path, tmp_path: Path) -> None:
    key = "module.encoder_q.bn1.weight"
    file = changed(paco, tmp_path / "f.pth", lambda state: state.update({key: argparse.Namespace()}))
    assert "bn1.weight is [0] instead of [16]" in refusal(file, "paco", tmp_path)


def test_a_compressed_archive_is_not_unpacked(paco: Path, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(paco) as archive,
        zipfile.ZipFile(tmp_path / "f.pth", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for entry in archive.infolist():
            bomb.writestr(entry.filename, archive.read(entry))
    assert "a compressed archive" in refusal(tmp_path / "f.pth", "paco", tmp_path)


def test_dicts_without_end_are_refused(tmp_path: Path) -> None:
    endless: dict[str, Any] = {"tensor": torch.zeros(1)}
    endless["again"] = endless
    torch.save({"state_dict": endless}, tmp_path / "f.pth")
    assert "nested too deeply" in refusal(tmp_path / "f.pth", "moco", tmp_path)


def test_a_tensor_that_claims_to_be_gigantic_is_not_allocated(paco: Path, tmp_path: Path) -> None:
    giant = torch.zeros(1).expand(1 << 20, 1 << 20)  # 4 TiB of a file of a few bytes
    file = changed(paco, tmp_path / "f.pth", lambda s: s.update({"module.encoder_q.conv1.weight": giant}))
    assert "conv1.weight is [1048576, 1048576]" in refusal(file, "paco", tmp_path)
    file = changed(paco, tmp_path / "f.pth", lambda s: s.update({"module.linear.weight": giant}))
    assert "centers" in refusal(file, "paco", tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak of memory")
def test_the_optimizer_is_mapped_and_not_loaded(paco: Path, tmp_path: Path) -> None:
    file, megabytes = tmp_path / "big.pth", 200
    torch.save({**torch.load(paco), "optimizer": {"state": torch.ones(megabytes << 18)}}, file)
    assert file.stat().st_size > megabytes << 20
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from zoo.release.convert import convert_checkpoint\n"
        "Path('/proc/self/clear_refs').write_text('5')  # the peak so far is forgotten\n"
        "def read(key):\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith(key))\n"
        "before = read('VmRSS')\n"
        f"convert_checkpoint(sys.argv[1], 'paco', sys.argv[2], arch='{PACO}')\n"
        "print(read('VmHWM') - before)"
    )
    command = [sys.executable, "-c", code, str(file), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    file.unlink()
    assert int(done.stdout) / 1024 < megabytes / 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_an_interrupted_conversion_leaves_no_release(tmp_path: Path, number: signal.Signals) -> None:
    file, out = made.save(tmp_path / "f.pth", made.MoCo()), tmp_path / "releases" / "out"
    code = (
        "import sys\n"
        "from zoo.release.convert import convert_checkpoint\n"
        "convert_checkpoint(sys.argv[1], 'moco', sys.argv[2], arch='resnet18')"
    )
    command = [sys.executable, "-c", code, str(file), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not out.parent.is_dir() and process.poll() is None:  # writing begins with this folder
        time.sleep(0.002)
    process.send_signal(number)
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert not out.exists()
    if number is signal.SIGINT:
        assert list(out.parent.iterdir()) == []
    zoo.convert(file, "moco", out, arch="resnet18", size=64).verify()  # again, and it works


def _doubled(container: type, depth: int = 60) -> Any:
    """A few hundred bytes that are 2**60 values for who walks through them."""
    value: Any = [0] if container is list else {"a": 0}
    for _ in range(depth):
        value = [value, value] if container is list else {"a": value, "b": value}
    return value


@pytest.mark.parametrize("container", [list, dict])
def test_one_object_that_stands_in_many_places_is_looked_at_once(
    paco: Path, tmp_path: Path, container: type
) -> None:
    torch.save({**torch.load(paco), "evil": _doubled(container)}, tmp_path / "f.pth")
    release = zoo.convert(tmp_path / "f.pth", "paco", tmp_path / "out", arch=PACO)
    assert "evil" in release.recipe["converted"]["left_out"]["not weights"]


def test_dicts_that_stand_in_many_places_of_the_weights_are_refused(paco: Path, tmp_path: Path) -> None:
    file = changed(paco, tmp_path / "f.pth", lambda state: state.update({"evil": _doubled(dict)}))
    assert "nested too deeply" in refusal(file, "paco", tmp_path)


def test_arguments_that_are_no_architectures_are_refused_before_timm_sees_them(
    paco: Path, tmp_path: Path
) -> None:
    for key, value in (("pretrained", True), ("checkpoint_path", "x.pth"), ("num_classes", 5)):
        message = refusal(paco, "paco", tmp_path, model_args={key: value})
        assert f"model_args: {key} cannot be part of a release" in message


def test_weights_without_values_are_one_error(paco: Path, tmp_path: Path) -> None:
    key = "module.encoder_q.conv1.weight"
    for tensor in (
        torch.empty(16, 3, 3, 3, device="meta"),
        torch.quantize_per_tensor(torch.zeros(16, 3, 3, 3), 0.1, 0, torch.qint8),
    ):
        file = changed(paco, tmp_path / "f.pth", lambda state, tensor=tensor: state.update({key: tensor}))
        assert "the weights cannot be copied" in refusal(file, "paco", tmp_path)


def test_a_size_of_zero_is_no_default(paco: Path, tmp_path: Path) -> None:
    assert '"input_size": found 0' in refusal(paco, "paco", tmp_path, size=0)
    assert '"crop_pct": found 0' in refusal(paco, "paco", tmp_path, crop_pct=0.0)


def test_an_architecture_with_the_tag_of_weights_is_refused(paco: Path, tmp_path: Path) -> None:
    message = refusal(paco, "paco", tmp_path, arch="resnet18.a1_in1k")
    assert message.endswith('expected an architecture without the tag of its weights: "resnet18"')


def test_a_pickle_named_safetensors_is_told_its_name(paco: Path, tmp_path: Path) -> None:
    (tmp_path / "f.safetensors").write_bytes(paco.read_bytes())
    assert "rename it to f.pth" in refusal(tmp_path / "f.safetensors", "paco", tmp_path)


@pytest.mark.parametrize("name", ["f.safetensors", "f.pth.tar"])
def test_a_pointer_of_git_lfs_is_told_what_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    assert "Git LFS's pointer" in refusal(tmp_path / name, "paco", tmp_path)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (torch.zeros(1).expand(1 << 40, 64), "centers: found a tensor that does not hold its own values"),
        (torch.zeros(7, 64).to_sparse(), "centers: found a tensor that does not hold its own values"),
        (torch.zeros(9, 64), "expected"),
    ],
    ids=["a view of one value", "sparse", "other shape"],
)
def test_centers_that_are_no_plain_tensor_are_refused(
    paco: Path, tmp_path: Path, odd: torch.Tensor, message: str
) -> None:
    file = changed(paco, tmp_path / "f.pth", lambda state: state.update({"module.linear.weight": odd}))
    found = refusal(file, "paco", tmp_path)
    assert "f.pth: " in found
    assert message in found
