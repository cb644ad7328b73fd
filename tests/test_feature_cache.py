"""A second protocol on the same images, weights and machine takes the features of the first from a cache."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

import zoo
from tests.data_fixtures import photo
from tests.release_helpers import release_of, trained_encoder
from zoo.evaluation import encode
from zoo.release import Preprocess


class Counted:
    """How many images were encoded since it was last asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images, before = 0, encode.extract

        def extract(*arguments: object, **options: object) -> encode.Features:
            found = before(*arguments, **options)
            self.images += len(found.features)
            return found

        monkeypatch.setattr(encode, "extract", extract)

    def __call__(self) -> int:
        found, self.images = self.images, 0
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Counted]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Counted(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """24 training and 12 test images of 2 classes."""
    for row in range(36):
        file = tmp_path / "data" / ("train" if row < 24 else "val") / "ab"[row % 2] / f"{row:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo(32, 32, row).save(file)
    return tmp_path / "data"


def figures(release: Path, protocol: str, data: Path) -> dict[str, object]:
    return dict(zoo.evaluate(release, protocol, data, save=False)["metrics"])


def test_a_second_protocol_encodes_nothing_and_what_changed_is_encoded_again(
    counted: Counted, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = release_of(tmp_path / "r", trained_encoder()).path
    files = tmp_path / "cache" / "zoo" / "features"
    knn = figures(place, "knn", data)
    assert counted() == 36 and "from the cache" not in capsys.readouterr().err
    cached = figures(place, "linear", data)
    assert counted() == 0 and capsys.readouterr().err.count("from the cache") == 2
    assert figures(place, "knn", data) == knn
    counted()
    shutil.rmtree(files)
    assert figures(place, "linear", data) == cached and counted() == 36

    image = data / "val" / "a" / "24.png"
    status = image.stat()
    photo(32, 32, 99).save(image)  # another image, at the time of the first
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    figures(place, "knn", data)
    assert counted() == 12

    for damaged in files.iterdir():
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content[:-4] if damaged.stat().st_size % 8 else content)
    figures(place, "knn", data)
    assert counted() == 36

    other = trained_encoder()
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    figures(release_of(tmp_path / "other", other).path, "knn", data)
    assert counted() == 36, "other weights"
    config = json.loads((place / "config.json").read_text())
    config["pretrained_cfg"]["input_size"] = [3, 24, 24]
    (place / "config.json").write_text(json.dumps(config))
    figures(place, "knn", data)
    assert counted() == 36, "another size"


def test_models_and_images_that_a_program_holds_are_encoded_each_time(counted: Counted, data: Path) -> None:
    model = trained_encoder().eval()
    size = Preprocess(32, 1.0, "bilinear", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    for _ in range(2):
        zoo.evaluate(model, "knn", data, preprocess=size)
        assert counted() == 36


def test_what_was_used_longest_ago_leaves_a_cache_that_is_full(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, folder = (
        "cifar_resnet20.paco_digits_lt50",
        Path(os.environ["XDG_CACHE_HOME"]) / "zoo" / "features",
    )
    zoo.evaluate(release, "knn")
    first = {file.name: file.stat().st_size for file in folder.iterdir()}
    monkeypatch.setattr(encode, "CACHE_BYTES", sum(first.values()) + 1)
    for old in folder.iterdir():
        os.utime(old, ns=(0, 0))
    zoo.evaluate("cifar_resnet20.moco_v2_ft_digits_lt50", "knn")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= encode.CACHE_BYTES
    assert not first.keys() & {file.name for file in folder.iterdir()}


def test_a_full_disk_costs_the_cache_and_not_the_figures(
    counted: Counted, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(encode, "save_file", full)
    place = release_of(tmp_path / "r", trained_encoder()).path
    assert figures(place, "knn", data) and counted() == 36
