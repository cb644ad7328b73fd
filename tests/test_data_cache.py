"""Decoded images kept in a file: equal pixels, never a damaged, truncated or stale one, never a half one."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data_fixtures import list_dataset, photo
from tests.test_data_loader import digits
from zoo.data import DataConfig, cache, open_dataset
from zoo.data import dataset as datasets
from zoo.data.cache import decode_all
from zoo.data.config import ListFiles
from zoo.data.decode import scaled_to_square
from zoo.errors import DataError

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An own cache for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "zoo" / "decoded"


@pytest.fixture
def data(tmp_path):
    return list_dataset(tmp_path, [photo(12, 10, seed) for seed in range(7)])


def reopened(tmp_path):
    return open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", tmp_path)


def decoded(dataset, size=None, cache=True):
    return decode_all(dataset, size, device=CPU, cache=cache)


def expected(dataset, size=None):
    images = [scaled_to_square(dataset.image(i), size) for i in range(len(dataset))]
    return np.stack([np.asarray(image) for image in images]).transpose(0, 3, 1, 2)


def right(dataset, size=None):
    return np.array_equal(decoded(dataset, size).numpy(), expected(dataset, size))


def files(home):
    """What is kept, without locks and checksums; nothing temporary is left."""
    found = sorted(file for file in home.iterdir() if file.suffix not in (".lock", ".crc32"))
    assert not [file for file in found if file.suffix != ".npy"]
    return found


def refuse_to_decode(monkeypatch):
    def refuse(source, name):
        raise AssertionError("an image was decoded")

    monkeypatch.setattr("zoo.data.dataset.read_image", refuse)


@pytest.mark.parametrize("size", [None, 6])
def test_a_second_run_maps_the_file_of_the_first_which_any_numpy_reads(
    data, home, tmp_path, monkeypatch, size
):
    wanted = expected(data, size)
    if size is not None:  # decoded by a worker process
        monkeypatch.setattr(cache, "PARALLEL", 1)
        monkeypatch.setattr(cache, "PIECE", 2)
    assert right(data, size)
    (file,) = files(home)
    assert np.array_equal(np.load(file, mmap_mode="r"), wanted)
    refuse_to_decode(monkeypatch)
    pixels = decoded(reopened(tmp_path), size)
    assert np.array_equal(pixels.numpy(), wanted)
    assert str(file) in Path("/proc/self/maps").read_text()
    pixels[0] = 0  # a copy of the page, not the file
    assert np.array_equal(np.load(file), wanted)


def test_only_what_was_decoded_is_kept_and_only_on_demand(data, home):
    decoded(digits(), 8)
    decoded(data, cache=False)
    assert not home.exists()


DAMAGES = {
    "a pixel": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "the header": lambda content: content.replace(b"10, 12", b"12, 10"),
    "truncated": lambda content: content[:-1],
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_what_is_damaged_is_said_in_one_line_and_made_anew(data, home, caplog, kind):
    assert right(data)
    (file,) = files(home)
    content = file.read_bytes()
    assert DAMAGES[kind](content) != content
    file.write_bytes(DAMAGES[kind](content))
    assert right(data)
    assert file.read_bytes() == content
    assert files(home) == [file]
    said = {record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert said == {f"{file}: damaged; the images are decoded anew"}


@pytest.mark.parametrize("change", ["content", "content with the time of before", "time", "pillow"])
def test_a_file_of_other_images_or_another_decoder_is_not_used(data, home, tmp_path, monkeypatch, change):
    image = tmp_path / "3.png"
    image.write_bytes(image.read_bytes().ljust(2000, b"\0"))
    before = image.stat()
    assert right(data)
    if change.startswith("content"):
        photo(12, 10, 99).save(image)
        image.write_bytes(image.read_bytes().ljust(2000, b"\0"))
        assert image.stat().st_size == before.st_size
        if change != "content":
            os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "time":
        os.utime(image, ns=(1, 1))
    else:
        monkeypatch.setattr("PIL.__version__", "0.1")
    assert right(reopened(tmp_path))
    assert len(files(home)) == 2
    refuse_to_decode(monkeypatch)
    decoded(reopened(tmp_path))


def test_other_images_sizes_and_orders_have_files_of_their_own(data, home):
    variants = [(data, None), (data, 6), (data.subset([0, 1]), None), (data.subset([1, 0]), None)]
    for dataset, size in [*variants, *variants]:
        assert right(dataset, size)
    assert len(files(home)) == len(variants)


def test_an_interrupted_decoding_leaves_nothing(data, home, monkeypatch):
    read, seen = datasets.read_image, []

    def interrupted(*given):
        seen.append(given)
        if len(seen) == 5:
            raise KeyboardInterrupt
        return read(*given)

    monkeypatch.setattr(datasets, "read_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoded(data)
    assert files(home) == []


@pytest.mark.parametrize(
    ("second", "message"),
    [(photo(9, 8, 1), "8x8 and of 9x8 pixels.*data.image_size"), (None, "1.png. cannot be read")],
)
def test_data_that_cannot_be_kept_leaves_nothing(home, tmp_path, second, message):
    data = list_dataset(tmp_path, [photo(8, 8, 0), second or photo(8, 8, 1)])
    if second is None:
        (tmp_path / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match=message):
        decoded(data)
    assert files(home) == []


SLOW = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
import zoo.data.dataset as sources
from tests.test_data_cache import decoded, reopened
read = sources.read_image
def slow(*args):
    with open({log!r}, "a") as log:
        log.write("x")
    time.sleep({pause})
    return read(*args)
sources.read_image = slow
print(int(decoded(reopened(Path({folder!r}))).long().sum()))
"""


def start(tmp_path, pause):
    log = tmp_path / "decoded.log"
    code = SLOW.format(root=str(ROOT), log=str(log), folder=str(tmp_path), pause=pause)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True), log


def test_two_processes_at_once_decode_once_and_see_the_same(data, home, tmp_path):
    total = int(expected(data).astype(np.int64).sum())
    processes = [start(tmp_path, 0.3) for _ in range(2)]
    for process, _ in processes:
        out, _ = process.communicate(timeout=300)
        assert (process.returncode, int(out)) == (0, total)
    assert len(processes[0][1].read_text()) == 7  # each once
    assert len(files(home)) == 1


def test_what_a_killed_process_left_is_replaced_by_the_next(data, home, tmp_path):
    process, _ = start(tmp_path, 5)
    deadline = time.monotonic() + 300
    while not (home.exists() and [*home.glob(".*")]) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [*home.glob(".*")]
    assert right(data)
    assert len(files(home)) == 1


def test_a_place_that_takes_no_file_is_an_error_that_names_it(data, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match=r"cache.* cannot be written"):
        decoded(data)


def test_images_of_several_sizes_are_refused_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "PIECE", 1)
    data = list_dataset(tmp_path, [photo(8, 8, 0), photo(9, 8, 1)])
    with pytest.raises(DataError, match=r'"1\.png" has 9x8 pixels, the first one 8x8.*data.image_size'):
        decoded(data)
