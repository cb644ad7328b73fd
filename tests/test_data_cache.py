"""Decoded images kept in a file: equal pixels, never a damaged, truncated or stale one, never a half one."""

import io
import json
import logging
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data_fixtures import MEAN, STD, list_dataset, photo
from tests.test_data_loader import digits, make, same
from zoo.config import parse
from zoo.data import DataConfig, EvalView, ViewsConfig, eval_images, open_dataset
from zoo.data import decoded_file as module
from zoo.data.config import ListFiles, Parquet
from zoo.data.decode import read_image, scaled_to_square
from zoo.data.resident import _allocate, _on_device, decode_all, replacements
from zoo.errors import DataError

CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An own cache for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_checked", set())
    return tmp_path / "cache" / "zoo" / "decoded"


@pytest.fixture
def data(tmp_path):
    return list_dataset(tmp_path, [photo(12, 10, seed) for seed in range(7)])


def reopened(tmp_path):
    return open_dataset(DataConfig(source=ListFiles(train="all.txt", test="all.txt")), "train", tmp_path)


def pixels_of(dataset, size=None, **keys):
    return decode_all(dataset, size, device=CPU, **{"threads": 0, "cache": True, **keys}).pixels


def expected(dataset, size=None):
    images = [dataset.image(i) for i in range(len(dataset))]
    images = images if size is None else [scaled_to_square(image, size) for image in images]
    return np.stack([np.asarray(image) for image in images]).transpose(0, 3, 1, 2)


def files(home):
    return sorted(file for file in home.iterdir() if file.suffix != ".lock")


def refuse_to_decode(monkeypatch, but=()):
    def refuse(source, name):
        if name in but:
            return read_image(source, name)
        raise AssertionError("an image was decoded")

    monkeypatch.setattr("zoo.data.stores.read_image", refuse)
    monkeypatch.setattr("zoo.data.table.read_image", refuse)


@pytest.mark.parametrize("size", [None, 6])
@pytest.mark.parametrize("threads", [0, 2])
def test_the_file_has_the_decoded_images_and_any_numpy_reads_it(data, home, size, threads):
    wanted = expected(data, size)
    assert np.array_equal(pixels_of(data, size, threads=threads).numpy(), wanted)
    (file,) = files(home)
    assert np.array_equal(np.load(file, mmap_mode="r"), wanted)


def test_a_second_run_decodes_nothing(data, tmp_path, monkeypatch):
    first = pixels_of(data)
    refuse_to_decode(monkeypatch)
    assert torch.equal(pixels_of(reopened(tmp_path)), first)


def test_pieces_of_any_size_make_the_same_file(data, home, monkeypatch):
    pixels_of(data)
    whole = np.load(files(home)[0])
    monkeypatch.setattr("zoo.data.decoding.PIECE_IMAGES", 2)
    files(home)[0].unlink()
    for threads in (0, 3):
        assert np.array_equal(pixels_of(data, threads=threads).numpy(), whole)
    monkeypatch.setattr(module, "_checked", set())
    assert np.array_equal(pixels_of(data).numpy(), whole)


def test_batches_are_those_without_a_cache(data):
    def batches(cache):
        views = [{"op": "random_resized_crop", "size": 8}, {"op": "horizontal_flip"}]
        section = {"backend": "tensor", "cache": cache, "train": [views], "eval": {"size": 8}}
        from zoo.data import TrainLoader

        feed = TrainLoader(
            data, parse(ViewsConfig, section, "r"), mean=MEAN, std=STD, batch_size=3, drop_last=True, seed=1,
            device="cpu",
        )  # fmt: skip
        return list(feed.stream(0, 5))

    plain, first, second = batches(False), batches(True), batches(True)
    for other in (first, second):
        assert all(same(a, b) for a, b in zip(plain, other, strict=True))


def test_on_a_cpu_the_map_itself_is_used(data, home):
    pixels = pixels_of(data)
    (file,) = files(home)
    start = pixels.data_ptr()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line]
    spans = [tuple(int(edge, 16) for edge in line[0].split("-")) for line in maps]
    assert any(low <= start < high for low, high in spans)
    assert all("w" not in line[1] for line in maps)


def test_data_that_needs_no_decoding_is_not_kept(home):
    pixels_of(digits(), 8)
    assert not home.exists()
    assert digits().encoded() is None


def test_without_the_key_nothing_is_written(data, home):
    pixels_of(data, cache=False)
    assert not home.exists()


def damaged(kind, content):
    header, footer = 128, 16  # NumPy's header of this size; ours
    (length,) = struct.unpack("<Q", content[-footer : -footer + 8])
    flip = {
        "first pixel": header,
        "last pixel": len(content) - footer - length - 1,
        "shape": content.index(b"10, 12"),
        "record": len(content) - footer - 3,
        "checksum of the record": len(content) - 7,
        "magic": len(content) - 1,
    }
    if kind in flip:
        changed = bytearray(content)
        changed[flip[kind]] ^= 1
        return bytes(changed)
    return {
        "empty": b"",
        "short": content[:5],
        "truncated": content[:-1],
        "without its record": content[: -footer - length],
        "half": content[: len(content) // 2],
        "longer": content + b"x",
        "a byte lost within": content[:200] + content[201:],
        "swapped": content[:header] + content[header + 360 : header + 720] + content[header : header + 360]
        + content[header + 720 :],
        "junk": os.urandom(len(content)),
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        "first pixel", "last pixel", "shape", "record", "checksum of the record", "magic", "empty", "short",
        "truncated", "without its record", "half", "longer", "a byte lost within", "swapped", "junk",
    ],
)  # fmt: skip
def test_a_damaged_file_is_said_in_one_line_and_made_anew(data, home, caplog, kind):
    wanted = expected(data)
    pixels_of(data)
    (file,) = files(home)
    content = file.read_bytes()
    file.write_bytes(damaged(kind, content))
    assert np.array_equal(pixels_of(data).numpy(), wanted)
    line = warned(caplog)
    assert str(file) in line
    assert "decoded anew" in line
    assert file.read_bytes() == content
    assert files(home) == [file]


def test_every_bit_of_a_file_is_checked(home, tmp_path):
    data = list_dataset(tmp_path, [photo(2, 2, 0)])
    wanted = expected(data)
    pixels_of(data)
    (file,) = files(home)
    content = file.read_bytes()
    identity = module.identify(data, None)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        file.write_bytes(bytes(changed))
        module._checked.clear()
        assert module.read_decoded(identity) is None, place
    file.write_bytes(content)
    assert np.array_equal(module.read_decoded(identity).pixels.numpy(), wanted)


def test_checksums_are_compared_once_for_each_state_of_a_file(data, home, monkeypatch):
    pixels_of(data)
    module._checked.clear()
    compared = []
    compare = module._compare
    monkeypatch.setattr(module, "_compare", lambda *args: (compared.append(1), compare(*args)))
    pixels_of(data)
    pixels_of(data)
    assert len(compared) == 1
    (file,) = files(home)
    file.write_bytes(file.read_bytes())
    pixels_of(data)
    assert len(compared) == 2


@pytest.mark.parametrize("change", ["content", "content with the time of before", "time", "missing"])
def test_a_file_of_changed_images_is_not_used(data, home, tmp_path, caplog, change):
    image = tmp_path / "3.png"
    image.write_bytes(image.read_bytes().ljust(2000, b"\0"))
    before = image.stat()
    pixels_of(data)
    if change.startswith("content"):
        photo(12, 10, 99).save(image)
        image.write_bytes(image.read_bytes().ljust(2000, b"\0"))
        assert image.stat().st_size == before.st_size
        if change != "content":
            os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "time":
        os.utime(image, ns=(1, 1))
    else:
        image.unlink()
    found = decode_all(reopened(tmp_path), None, device=CPU, threads=0, cache=True)
    if change == "missing":
        assert list(found.errors) == [3]
    else:
        assert np.array_equal(found.pixels.numpy(), expected(data))
    assert "made of other files than there are now" in warned(caplog)
    assert len(files(home)) == 1


def test_another_pillow_decodes_again(data, home, monkeypatch, caplog):
    pixels_of(data)
    monkeypatch.setattr("PIL.__version__", "0.1")
    assert np.array_equal(pixels_of(data).numpy(), expected(data))
    assert "made of other pillow than there are now" in caplog.text


def test_other_images_sizes_and_orders_have_files_of_their_own(data, home):
    variants = [
        (data, None), (data, 6), (data, 7), (data.subset([0, 1, 2]), None), (data.subset([2, 1, 0]), None)
    ]  # fmt: skip
    for dataset, size in [*variants, *variants]:
        assert np.array_equal(pixels_of(dataset, size).numpy(), expected(dataset, size))
    assert len(files(home)) == len(variants)


def parquet(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(seeds):
        buffers = [io.BytesIO() for _ in seeds]
        for buffer, seed in zip(buffers, seeds, strict=True):
            photo(8, 8, seed).save(buffer, "JPEG")
        return [{"bytes": buffer.getvalue(), "path": None} for buffer in buffers]

    for shard in range(2):
        seeds = range(shard * 3, shard * 3 + 3)
        table = pa.table({"img": column(seeds), "other": column([s + 50 for s in seeds]), "label": [0, 1, 1]})
        pq.write_table(table, folder / f"train-{shard}.parquet")
    return lambda image="img": open_dataset(
        DataConfig(source=Parquet(train="train-*.parquet", image=image)), "train", folder
    )


def test_parquet_is_kept_by_column_and_rows(tmp_path, home, monkeypatch):
    opened = parquet(tmp_path)
    variants = [opened(), opened("other"), opened().subset([5, 0]), opened().subset([0, 5])]
    wanted = [expected(dataset) for dataset in variants]
    for dataset, pixels in zip(variants, wanted, strict=True):
        assert np.array_equal(pixels_of(dataset).numpy(), pixels)
    assert len(files(home)) == 4
    refuse_to_decode(monkeypatch)
    for dataset, pixels in zip(variants, wanted, strict=True):
        assert np.array_equal(pixels_of(dataset).numpy(), pixels)


def test_unreadable_images_are_remembered(data, tmp_path, monkeypatch):
    for number in (2, 3):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    wanted = expected(data.subset([0, 1, 4, 5, 6]))
    feed = make(reopened(tmp_path), views=[[]], batch_size=7, max_bad_images=2)
    reference = next(feed.stream(0, 1))

    def cached(limit):
        from zoo.data import TrainLoader

        section = {"backend": "tensor", "cache": True, "train": [[]], "eval": {"size": 8}}
        return TrainLoader(
            reopened(tmp_path), parse(ViewsConfig, section, "r"), mean=MEAN, std=STD, batch_size=7,
            drop_last=True, seed=1, device="cpu", max_bad_images=limit,
        )  # fmt: skip

    for _ in range(2):
        feed = cached(2)
        assert feed.bad_images == ["2.png", "3.png"]
        batch = next(feed.stream(0, 1))
        assert same(batch, reference)
        assert sorted(batch.index.tolist()) == [0, 1, 4, 4, 4, 5, 6]  # the next readable one stands for each
        refuse_to_decode(monkeypatch, but=("2.png", "3.png"))  # what failed is tried again, nothing else
    with pytest.raises(DataError, match=r'image "2.png" cannot be read: .*1 other image .*at most 1'):
        cached(1)
    kept = decode_all(reopened(tmp_path), None, device=CPU, threads=0, cache=True)
    assert np.array_equal(kept.pixels.numpy()[[0, 1, 4, 5, 6]], wanted)
    assert set(kept.errors) == {2, 3}


def test_an_image_that_only_the_system_refused_is_not_remembered(data, tmp_path, monkeypatch, caplog):
    def busy(source, name):
        if name == "3.png":
            raise DataError(f'image "{name}" cannot be read: [Errno 24] Too many open files')
        return read_image(source, name)

    with monkeypatch.context() as patched:
        patched.setattr("zoo.data.stores.read_image", busy)
        assert list(decode_all(data, None, device=CPU, threads=0, cache=True).errors) == [3]
    for _ in range(2):  # the files are the same, byte for byte and in their times
        found = decode_all(reopened(tmp_path), None, device=CPU, threads=0, cache=True)
        assert not found.errors
        assert np.array_equal(found.pixels.numpy(), expected(data))
    assert caplog.text.count('image "3.png" can be read by now') == 1


def rewritten(file, record=None, shape=None):
    """Write a record, or the header of an array of another shape, with the checksums that belong to it."""
    content = file.read_bytes()
    length, _, magic = module.FOOTER.unpack(content[-module.FOOTER.size :])
    body, end = content[: -module.FOOTER.size - length], content[-module.FOOTER.size - length :]
    known = json.loads(end[:length])
    if shape is not None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        body = header.getvalue() + body[known["pieces"][0][0] :]
        known["pieces"][0] = [len(header.getvalue()), zlib.crc32(header.getvalue())]
    if callable(record):
        known.update(record(len(body)))
    text = json.dumps(known if record is None or callable(record) else record).encode()
    file.unlink()
    file.write_bytes(body + text + module.FOOTER.pack(len(text), zlib.crc32(text), magic))


@pytest.mark.parametrize(
    "record",
    [
        [1],
        lambda _: {"state": []},
        lambda _: {"errors": []},
        lambda _: {"pieces": None},
        lambda size: {"pieces": [[1 << 42, 0], [size - (1 << 42), 0]]},
        lambda size: {"pieces": [[1 << 80, 0], [size - (1 << 80), 0]]},
        lambda _: {"errors": {"7": "beyond"}},
        lambda _: {"errors": {"-1": "before"}},
        lambda _: {"errors": {str(place): "all" for place in range(7)}},
    ],
)
def test_a_record_that_makes_no_sense_is_not_believed(data, home, caplog, record):
    wanted = pixels_of(data).numpy().copy()
    (file,) = files(home)
    rewritten(file, record)
    found = decode_all(data, None, device=CPU, threads=0, cache=True)
    assert np.array_equal(found.pixels.numpy(), wanted)
    assert not found.errors
    assert "the images are decoded anew" in warned(caplog)


@pytest.mark.parametrize("shape", [(7, 1, 10, 12), (7, 3, 5, 12), (7, 3, 10, -1), (7, 3, 0, 0)])
def test_an_array_of_another_shape_is_not_believed(data, home, caplog, shape):
    wanted = pixels_of(data).numpy().copy()
    (file,) = files(home)
    rewritten(file, shape=shape)
    assert np.array_equal(pixels_of(data).numpy(), wanted)
    assert "the images are decoded anew" in warned(caplog)


@pytest.mark.parametrize(
    ("errors", "result"),
    [((), [0, 1, 2, 3]), ((1, 2), [0, 3, 3, 3]), ((3,), [0, 1, 2, 0]), ((0, 3), [1, 1, 2, 1])],
)
def test_the_next_readable_image_stands_for_an_unreadable_one(errors, result):
    assert replacements(4, dict.fromkeys(errors, "bad")).tolist() == result


def test_nothing_readable_is_a_clear_error_and_no_file(data, tmp_path, home):
    for number in range(7):
        (tmp_path / f"{number}.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 7 images can be read"):
        pixels_of(data)
    assert not home.exists() or not files(home)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupted_decoding_leaves_nothing(data, home, monkeypatch, threads):
    read, seen = data._store.read, []

    def interrupted(row):
        seen.append(row)
        if len(seen) == 5:
            raise KeyboardInterrupt
        return read(row)

    monkeypatch.setattr(data._store, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pixels_of(data, threads=threads)
    assert files(home) == []
    monkeypatch.undo()


def test_images_of_different_sizes_leave_nothing(home, tmp_path):
    data = list_dataset(tmp_path, [photo(8, 8, 0), photo(9, 8, 1)])
    with pytest.raises(DataError, match="needs one size"):
        pixels_of(data)
    assert files(home) == []


SLOW = """
import sys, time
sys.path.insert(0, {root!r})
import torch
from pathlib import Path
import zoo.data.stores as sources
from tests.test_data_cache import pixels_of, reopened
read = sources.read_image
def slow(*args):
    with open({log!r}, "a") as log:
        log.write("x")
    time.sleep({pause})
    return read(*args)
sources.read_image = slow
print(int(pixels_of(reopened(Path({folder!r}))).long().sum()))
"""


def start(tmp_path, pause):
    log = tmp_path / "decoded.log"
    code = SLOW.format(root=str(ROOT), log=str(log), folder=str(tmp_path), pause=pause)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True), log


def test_two_processes_at_once_decode_once_and_see_the_same(data, home, tmp_path):
    total = int(expected(data).astype(np.int64).sum())
    processes = [start(tmp_path, 0.15) for _ in range(2)]
    for process, _ in processes:
        out, _ = process.communicate(timeout=120)
        assert (process.returncode, int(out)) == (0, total)
    looked = len(processes[0][1].read_text())
    assert looked <= 7 + 2  # each once, and the first by both: it tells the size
    assert len(files(home)) == 1


def test_what_a_killed_process_left_is_removed_by_the_next(data, home, tmp_path):
    process, log = start(tmp_path, 0.2)
    deadline = time.monotonic() + 60
    while (not log.exists() or len(log.read_text()) < 4) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(files(home)) == 1
    assert files(home)[0].name.startswith(".")
    assert np.array_equal(pixels_of(data).numpy(), expected(data))
    (file,) = files(home)
    assert not file.name.startswith(".")


def warned(caplog):
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "\n" not in line
    return line


def test_too_little_space_is_said_and_training_goes_on(data, home, monkeypatch, caplog):
    usage = shutil.disk_usage(home.parent.parent.parent)._replace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert np.array_equal(pixels_of(data).numpy(), expected(data))
    assert "not kept, so the next run decodes again: it needs 0.0 GiB" in warned(caplog)
    assert files(home) == []


def test_a_disk_that_fills_up_is_said_and_training_goes_on(data, home, monkeypatch, caplog):
    wanted = expected(data)
    monkeypatch.setattr("zoo.data.decoding.PIECE_IMAGES", 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # of a file: the second piece fails
    try:
        pixels = pixels_of(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert np.array_equal(pixels.numpy(), wanted)
    assert "File too large" in warned(caplog)
    assert files(home) == []


def test_a_folder_that_cannot_be_written_is_said_and_training_goes_on(data, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert np.array_equal(pixels_of(data).numpy(), expected(data))
    assert any("not kept" in record.getMessage() for record in caplog.records)


def test_images_that_do_not_fit_have_an_error_that_names_the_three_ways():
    with pytest.raises(DataError) as caught:
        _allocate((10**9, 3, 10**3, 10**3), CPU)
    for way in ("data.image_size", "views.cache", 'views.backend to "stream"', "2793967.7 GiB"):
        assert way in str(caught.value)


def test_what_would_fill_a_gpu_stays_mapped(data, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "zoo")
    kept = decode_all(data, None, device=CPU, threads=0, cache=True)
    size = kept.pixels.nbytes
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (size, 0))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda _: 3 * size)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda _: 3 * size)
    assert _on_device(kept, torch.device("cuda")) is kept
    assert "stay in the file" in caplog.text
    monkeypatch.setattr(
        "torch.cuda.memory_allocated", lambda _: size
    )  # the rest is of a training that has ended
    monkeypatch.setattr("zoo.data.resident._allocate", lambda shape, _: torch.empty(shape, dtype=torch.uint8))
    copied = _on_device(kept, torch.device("cuda"))
    assert copied is not kept and torch.equal(copied.pixels, kept.pixels)


def test_batches_of_data_that_stays_on_the_host_are_the_same(data):
    """The path of a GPU that the data would fill, on a CPU: a thread gathers, and nothing else differs."""
    feeds = [make(data, batch_size=2, max_bad_images=1) for _ in range(2)]
    feeds[1]._feed._here = False
    first, second = (list(feed.stream(1, 8)) for feed in feeds)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


def features_input(dataset, **keys):
    view = EvalView(size=12, crop_pct=1.0)
    return [
        torch.cat(part)
        for part in zip(
            *eval_images(dataset, view, MEAN, STD, batch_size=3, device="cpu", **keys), strict=True
        )
    ]


def test_evaluation_takes_kept_images_and_sees_the_same_pixels(tmp_path, monkeypatch, caplog):
    data = list_dataset(tmp_path, [photo(12, 12, seed) for seed in range(7)])
    (tmp_path / "2.png").write_bytes(b"")
    plain = features_input(data, max_bad_images=1)
    assert all(map(torch.equal, plain, features_input(data, max_bad_images=1, cache=True)))  # none there yet
    pixels_of(data)
    refuse_to_decode(monkeypatch, but=("2.png",))  # what failed is tried again, nothing else
    assert all(map(torch.equal, plain, features_input(data, max_bad_images=1, cache=True)))
    with pytest.raises(DataError, match=r"2\.png. cannot be read"):
        features_input(data, cache=True)
    with pytest.raises(AssertionError, match="was decoded"):
        features_input(data, max_bad_images=1)


@pytest.mark.parametrize("view", [EvalView(size=12, crop_pct=0.875), EvalView(size=10, crop_pct=1.0)])
def test_evaluation_that_scales_decodes(tmp_path, monkeypatch, view):
    data = list_dataset(tmp_path, [photo(12, 12, seed) for seed in range(3)])
    pixels_of(data)
    refuse_to_decode(monkeypatch)
    with pytest.raises(AssertionError, match="was decoded"):
        list(eval_images(data, view, MEAN, STD, batch_size=3, device="cpu", cache=True))


def test_long_decoding_is_said_line_by_line_where_there_is_no_terminal(data, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "zoo")
    monkeypatch.setattr("zoo.data.decoding.PIECE_IMAGES", 3)
    pixels_of(data, cache=False)
    assert caplog.records == []
    monkeypatch.setattr("zoo.data.decoding.PATIENCE", 0.0)
    pixels_of(data, cache=False)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"decoding: {done} of 7 images" for done in (3, 6, 7)]


def test_the_record_is_plain_json(data, home):
    pixels_of(data)
    content = files(home)[0].read_bytes()
    (length,) = struct.unpack("<Q", content[-16:-8])
    record = json.loads(content[-16 - length : -16])
    assert set(record) == {"state", "pieces", "errors"}
    assert sum(size for size, _ in record["pieces"]) == len(content) - 16 - length


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path, caplog):
    identity = module.identify(list_dataset(tmp_path, [photo(8, 8, 0), photo(8, 8, 1)]), None)
    identity.file.parent.mkdir(parents=True)
    os.mkfifo(identity.file)
    assert module.read_decoded(identity) is None
    assert "no regular file; the images are decoded anew" in caplog.text
