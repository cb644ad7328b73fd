"""Decoded images kept in a file: equal pixels, never a damaged, truncated or stale one, never a half one."""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.data_fixtures import list_dataset, photo
from tests.test_data_loader import digits
from zoo.data import DataConfig, open_dataset
from zoo.data import dataset as datasets
from zoo.data.config import ListFiles
from zoo.data.decode import decode_all, read_image, scaled_to_square
from zoo.errors import DataError


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


def right(dataset, size=None):
    images = [scaled_to_square(dataset.image(i), size) for i in range(len(dataset))]
    expected = np.stack([np.asarray(image) for image in images]).transpose(0, 3, 1, 2)
    return np.array_equal(decode_all(dataset, size, cache=True), expected)


def files(home):
    """What is kept, without locks and checksums; nothing temporary is left."""
    return sorted(file for file in home.iterdir() if file.suffix not in (".lock", ".sha256"))


def refuse_to_decode(monkeypatch):
    names = set()

    def refuse(source, name):
        names.add(name)
        assert len(names) == 1, "images were decoded beside the first, which tells the size"
        return read_image(source, name)

    monkeypatch.setattr("zoo.data.dataset.read_image", refuse)


@pytest.mark.parametrize("size", [None, 6])
def test_a_second_run_maps_the_file_of_the_first(data, home, tmp_path, monkeypatch, size):
    assert right(data, size)
    first = decode_all(data, size, cache=False)
    (file,) = files(home)
    refuse_to_decode(monkeypatch)
    pixels = decode_all(reopened(tmp_path), size, cache=True)
    assert np.array_equal(pixels, first)
    assert str(file) in Path("/proc/self/maps").read_text()
    pixels[0] = 0  # a copy of the page, not the file
    assert np.array_equal(decode_all(reopened(tmp_path), size, cache=True), first)


def test_only_what_was_decoded_is_kept_and_only_on_demand(data, home):
    decode_all(digits(), 8, cache=True)
    decode_all(data, None, cache=False)
    assert not home.exists()


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-1] + bytes([content[-1] ^ 1]), lambda content: content[:-1]]
)
def test_a_damaged_file_is_made_anew(data, home, damage):
    assert right(data)
    (file,) = files(home)
    content = file.read_bytes()
    file.write_bytes(damage(content))
    assert right(data)
    assert files(home) == [file] and file.read_bytes() == content


@pytest.mark.parametrize("change", ["content", "content with the time of before", "time", "pillow"])
def test_a_file_of_other_images_or_another_decoder_is_not_used(data, home, tmp_path, monkeypatch, change):
    image = tmp_path / "3.png"
    image.write_bytes(image.read_bytes().ljust(2000, b"\0"))
    before = image.stat()
    assert right(data)
    if change.startswith("content"):
        photo(12, 10, 99).save(image)
        image.write_bytes(image.read_bytes().ljust(2000, b"\0"))
        if change != "content":
            os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "time":
        os.utime(image, ns=(1, 1))
    else:
        monkeypatch.setattr("PIL.__version__", "0.1")
    assert right(reopened(tmp_path))
    assert len(files(home)) == 2


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
        decode_all(data, None, cache=True)
    assert files(home) == []


def test_a_place_that_takes_no_file_is_an_error_that_names_it(data, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match=r"cache.* cannot be written"):
        decode_all(data, None, cache=True)
