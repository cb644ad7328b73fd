"""Hostile and damaged releases: each is one clear error, soon, without harm.

Every refusal runs under `harmless`: it must be a ReleaseError of one line, within seconds, and the process
must not have grown by more than a few megabytes on the way.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import zoo
from tests.process_memory import status
from tests.release_helpers import release_of, some_centers, trained_encoder
from zoo.errors import ReleaseError
from zoo.release import build, format, verified
from zoo.release.check import check_release

SECONDS, MEGABYTES = 5.0, 64


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("releases") / "cifar_resnet20.paco_test"
    release = release_of(folder, trained_encoder(), centers=some_centers(64))
    zoo.load(release.path)  # what a first load imports and caches is not the later ones' doing
    return release


@pytest.fixture
def copied(released, tmp_path):
    return shutil.copytree(released.path, tmp_path / "copy")


@contextmanager
def harmless(match: str) -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before, start = status("VmHWM"), time.process_time()
    with pytest.raises(ReleaseError, match=match) as caught:
        yield
    assert time.process_time() - start < SECONDS
    assert status("VmHWM") - before < MEGABYTES << 20
    assert torch.is_grad_enabled(), "stopped in the middle of something that switches gradients off"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 4000


def edit(folder: Path, *path: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    section = config
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))


def record_hash(folder: Path, name: str) -> None:
    edit(folder, "zoo", format.HASHED[name], value=format.sha256(folder / name))


# --- config.json ---


@pytest.mark.parametrize(
    "path",
    [
        ("auto_map",),
        ("trust_remote_code",),
        ("custom_pipelines",),
        *(("pretrained_cfg", key) for key in ("url", "file", "hf_hub_id", "hf_hub_filename", "state_dict")),
        ("pretrained_cfg", "source"),
        *(("model_args", key) for key in ("pretrained", "checkpoint_path", "pretrained_cfg_overlay", "url")),
        ("zoo", "auto_map"),
    ],
)
def test_a_config_that_asks_for_code_or_other_files_is_refused_by_name(copied, path):
    edit(copied, *path, value={"AutoModel": "evil.Model"})
    with harmless(rf'config\.json: "{path[-1] if len(path) == 1 else ".".join(path)}" asks for code, or for'):
        zoo.load(copied)


@pytest.mark.parametrize("value", [True, "hf", 1, None])
def test_a_custom_loader_is_refused(copied, value):
    edit(copied, "pretrained_cfg", "custom_load", value=value)
    with harmless(r"pretrained_cfg\.custom_load: found .*a release never needs a loader of its own"):
        zoo.load(copied)


@pytest.mark.parametrize(
    "key", ["pretrained_cfg", "cache_dir", "features_only", "arch", "model_name", "pretrained_filter_fn"]
)
def test_arguments_of_timms_loader_are_no_models_arguments(copied, key):
    edit(copied, "model_args", key, value="x")
    with harmless(rf"model_args: {key} cannot be part of a release"):
        zoo.load(copied)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("num_clases",), r'unknown key "num_clases"\. Did you mean "num_classes"'),
        (
            ("pretrained_cfg", "crop_pc"),
            r'unknown key "pretrained_cfg\.crop_pc"\. Did you mean "crop_pct"',
        ),
        (("zoo", "recipe_sha"), r'unknown key "zoo\.recipe_sha"\. Did you mean "recipe_sha256"'),
        (("model_args", "drop_rat"), r'no argument "drop_rat"\. Did you mean "drop_rate"'),
    ],
)
def test_unknown_keys_are_refused_at_every_level_with_the_nearest(copied, path, message):
    edit(copied, *path, value=1)
    with harmless(message):
        zoo.load(copied)


def test_a_hundred_thousand_unknown_keys_are_no_flood(copied):
    config = json.loads((copied / "config.json").read_text())
    config |= {f"key{index}": 0 for index in range(100_000)}
    (copied / "config.json").write_text(json.dumps(config))
    with harmless("found 100007 keys"):
        zoo.load(copied)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cifar_resnet_20", r'unknown architecture "cifar_resnet_20"\. Did you mean "cifar_resnet20"\?'),
        ("hf-hub:evil/model", '"architecture": found .*hf-hub:evil/model'),
        ("local-dir:/tmp/evil", '"architecture": found'),
        ("resnet18.a1_in1k", '"architecture": found'),
        (["resnet18"], '"architecture": found'),
    ],
)
def test_an_unknown_architecture_is_named_with_the_nearest(copied, value, message):
    edit(copied, "architecture", value=value)
    with harmless(message):
        zoo.load(copied)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("num_classes",), "5", '"num_classes": found .*expected a valid integer'),
        (("num_classes",), 10**9, "found 5, but num_classes is 1000000000"),
        (("num_classes",), True, '"num_classes": found True'),
        (("model_args",), [], '"model_args": found'),
        (("pretrained_cfg",), None, '"pretrained_cfg": found None'),
        (("label_names",), ["a"], "label_names: found 1, but num_classes is 5"),
        (("label_names",), [1, 2, 3, 4, 5], '"label_names.0": found 1'),
        (("label_names",), [1] * 300_000, '"label_names.0": found 1'),
        (("pretrained_cfg", "input_size"), [3, 10**9, 10**9], "expected less than or equal to 4096"),
        (("pretrained_cfg", "input_size"), [3, -32, 32], "expected greater than 0"),
        (("pretrained_cfg", "input_size"), [1, 32, 32], "found 1 channels, expected 3"),
        (("pretrained_cfg", "crop_pct"), 1e-9, r"resized to 3\.2e\+10 pixels"),
        (("pretrained_cfg", "std"), [0.0, 1, 1], "expected greater than 0"),
        (("pretrained_cfg", "classifier"), None, r"pretrained_cfg\.classifier: found None"),
        (("pretrained_cfg", "interpolation"), "evil", "expected 'nearest'"),
        (("zoo", "name"), "../../etc/passwd", r'"zoo\.name": found'),
        (("zoo", "description"), "\x1b]0;owned\x07", '"zoo.description": found control characters'),
        (("zoo", "dataset"), {"a\x1b[2J": 1}, "found control characters"),
        (("zoo", "feature_dim"), 10**400, '"zoo.feature_dim": found'),
        (("zoo", "has_centers"), False, "centers_sha256: found .*but has_centers is False"),
        (("zoo", "weights_sha256"), "0" * 63, '"zoo.weights_sha256": found'),
        (("zoo", "format"), {"x": ["y"] * 1000}, "expected 1"),
        (("zoo",), None, "expected 1"),
    ],
)
def test_values_that_no_release_has_are_refused(copied, path, value, message):
    edit(copied, *path, value=value)
    with harmless(message):
        zoo.load(copied)


def test_a_missing_hash_is_refused(copied):
    config = json.loads((copied / "config.json").read_text())
    del config["zoo"]["centers_sha256"]
    (copied / "config.json").write_text(json.dumps(config))
    with harmless('missing key "zoo.centers_sha256"'):
        zoo.load(copied)


@pytest.mark.parametrize(
    ("arch", "arguments", "message"),
    [
        (
            "vit_tiny_patch16_224",
            {"depth": 10**9},
            '"model_args.depth": found 1000000000, expected',
        ),
        ("vit_tiny_patch16_224", {"embed_dim": -(10**9)}, "found -1000000000, expected"),
        ("vit_tiny_patch16_224", {"depth": 10**400}, '"model_args.depth": found'),
        ("vit_tiny_patch16_224", {"mlp_ratio": 1e300}, '"model_args.mlp_ratio": found 1e.300, expected'),
        ("vit_tiny_patch16_224", {"depth": 16_000}, "ask for a far larger model than the weights are"),
        ("vit_tiny_patch16_224", {"embed_dim": 16_383, "num_heads": 3}, "does not fit vit_tiny"),
        ("vit_tiny_patch16_224", {"img_size": 16_000, "patch_size": 1}, "does not fit vit_tiny"),
        ("convnext_atto", {"depths": [16_000] * 4}, "ask for a far larger model than the weights are"),
        ("convnext_atto", {"depths": [1] * 100_000}, '"model_args.depths": found 100000 items'),
        ("swin_tiny_patch4_window7_224", {"window_size": 4_096}, "does not fit swin_tiny|cannot be built"),
        ("resnet18", {"block_args": {"a": {"b": "c"}}}, 'no argument "a"'),
        ("vit_tiny_patch16_224", {"norm_layer": "os.system"}, "cannot be built|norm_layer"),
        ("vit_tiny_patch16_224", {"depth": "9"}, "cannot be built"),
    ],
)
def test_gigantic_and_absurd_arguments_stop_early_and_allocate_nothing(copied, arch, arguments, message):
    edit(copied, "architecture", value=arch)
    edit(copied, "model_args", value=arguments)
    with harmless(message):
        zoo.load(copied)


def test_building_with_storage_allocates_no_more_than_it_may():
    """The way of architectures that cannot be built on the meta device."""
    with harmless("ask for a far larger model"), build._Construction(max_bytes=16 << 20):
        timm.create_model("resnet18", num_classes=0)
    with harmless("ask for a far larger model"), build._Construction(max_bytes=16 << 20):
        torch.empty(10**6, 10**6)
    with build._Construction(max_bytes=64 << 20):
        assert timm.create_model("resnet18", num_classes=0).conv1.weight.device.type == "cpu"


def test_buffers_that_only_the_config_declares_are_bounded(tmp_path, monkeypatch):
    """They stand in no header: a small table of relative positions stands for the square of it in indices."""
    arguments = {"img_size": 64, "embed_dim": 24, "depths": [1, 1, 1, 1]}
    encoder = trained_encoder("swin_tiny_patch4_window7_224", **arguments)
    release = release_of(tmp_path / "r", encoder, "swin_tiny_patch4_window7_224", 64, model_args=arguments)
    zoo.load(release.path)
    monkeypatch.setattr(build, "SPARE_BYTES", 0)
    monkeypatch.setattr(build, "SPARE_PER_BYTE", 0)
    with harmless("buffers"):
        zoo.load(release.path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b'{"zoo": 1, "zoo": 2}', 'key "zoo" stands there twice'),
        (b'{"zoo": {"format": NaN}}', "NaN is no number"),
        (b'{"zoo": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b"[1]", "found a list, expected a JSON object"),
        (b"\xff\xfe{}", "no UTF-8 text"),
        (b"{" + b" " * (9 << 20), "found 9,437,185 bytes, expected at most 8,388,608"),
        (pickle.dumps({"zoo": 1}), "this is a pickle; nothing was unpickled"),
    ],
)
def test_json_that_is_none_is_refused(copied, content, message):
    for name in ("config.json", "metrics.json"):
        folder = Path(shutil.copytree(copied, copied.with_name(name)))
        (folder / name).write_bytes(content)
        with harmless(message):
            _ = zoo.open(folder).metrics


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.json", "recipe.yaml", "README.md", "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_not_read(copied, name, kind):
    file = copied / name
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
    with harmless("no regular file|missing"):
        release = zoo.open(copied)
        _ = release.metrics, release.recipe, release.card, release.load()


# --- tensors ---


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD_FILES = {
    "a header of 8 exabytes": struct.pack("<Q", 1 << 63) + b"{}",
    "a header of 100 MB": struct.pack("<Q", 100 << 20) + b" " * 100,
    "a header of 9 MB": safetensors(b"{" + b" " * (9 << 20) + b"}"),
    "terabytes declared": safetensors({"a": entry(shape=[10**6, 10**6], offsets=[0, 4 * 10**12])}),
    "terabytes in 16 bytes": safetensors({"a": entry(shape=[10**12])}, b"0" * 16),
    "shapes that overflow": safetensors({"a": entry(shape=[2**62] * 4)}, b"0" * 16),
    "a gap": safetensors({"a": entry(offsets=[4, 20])}, b"0" * 20),
    "an overlap": safetensors({"a": entry(), "b": entry(offsets=[8, 24])}, b"0" * 24),
    "bytes at the end": safetensors({"a": entry()}, b"0" * 20),
    "a negative size": safetensors({"a": entry(shape=[-4])}, b"0" * 16),
    "a size that is a word": safetensors({"a": entry(shape=["4"])}, b"0" * 16),
    "an unknown type": safetensors({"a": entry("F5")}, b"0" * 16),
    "a type of many lines": safetensors({"a": entry("x\n" * 10_000)}, b"0" * 16),
    "a type that is a list": safetensors({"a": entry([])}, b"0" * 16),
    "entries that are words": safetensors({"a": "x"}),
    "a list for a header": safetensors([1]),
    "no JSON": safetensors(b"\xff" * 10),
    "a deep header": safetensors(b"[" * 100_000),
    "nothing": b"",
}


@pytest.mark.parametrize("name", ["model.safetensors", "centers.safetensors"])
@pytest.mark.parametrize("case", BAD_FILES)
def test_headers_are_checked_before_tensors_are_read(copied, name, case):
    (copied / name).write_bytes(BAD_FILES[case])
    record_hash(copied, name)  # even where the record agrees
    with harmless(f"{name}: damaged, cut off or no safetensors file: "):
        release = zoo.open(copied)
        _ = release.load() if name == "model.safetensors" else release.centers


def test_a_type_that_no_release_has_is_named(copied):
    (copied / "model.safetensors").write_bytes(safetensors({"a": entry("U16", [8])}, b"0" * 16))
    with harmless(r'model\.safetensors: a is "U16", expected one of F64'):
        zoo.load(copied)


def test_a_header_of_very_many_tensors_is_soon_read(copied):
    """safetensors before 0.7 took minutes."""
    tensors = {f"{index}": entry("U8", [], [index, index + 1]) for index in range(50_000)}
    (copied / "model.safetensors").write_bytes(safetensors(tensors, b"0" * 50_000))
    with harmless("does not fit cifar_resnet20: missing: .*unexpected: 0, .* and 49995 more"):
        zoo.load(copied)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.999999])
def test_truncated_weights_are_refused(copied, keep):
    data = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(data[: int(len(data) * keep)])
    with harmless(r"model\.safetensors: damaged, cut off or no safetensors file"):
        zoo.load(copied)


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], name: str) -> None:
    tensors = load_file(folder / name)
    tensors = {key: value.clone() for key, value in tensors.items()}
    change(tensors)
    save_file(tensors, folder / "new", metadata={"format": "pt"})
    (folder / "new").replace(folder / name)
    record_hash(folder, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(extra=torch.ones(3)), "does not fit cifar_resnet20: unexpected: extra"),
        (lambda t: t.pop("conv1.weight"), "does not fit cifar_resnet20: missing: conv1.weight"),
        (
            lambda t: t.update({"conv1.weight": torch.ones(16, 3, 5, 5)}),
            r"conv1.weight is \[16, 3, 5, 5\] instead of \[16, 3, 3, 3\]",
        ),
        (
            lambda t: t.update({"conv1.weight": t["conv1.weight"].to(torch.int8)}),
            "other type: conv1.weight is int8 instead of float32",
        ),
        (
            lambda t: t.update({"bn1.num_batches_tracked": torch.tensor(1.5)}),
            "bn1.num_batches_tracked is float32 instead of int64",
        ),
    ],
)
def test_tensors_that_are_not_the_architectures_are_refused(copied, change, message):
    change_tensors(copied, change, "model.safetensors")
    with harmless(message):
        zoo.load(copied)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(extra=torch.ones(5)), "does not fit 5 classes: unexpected: extra"),
        (lambda t: t.pop("bias"), "missing: bias"),
        (lambda t: t.update(weight=torch.ones(5, 63)), r"weight is \[5, 63\] instead of \[5, 64\]"),
        (lambda t: t.update(prototypes=torch.ones(4, 8)), r"prototypes is \[4, 8\] instead of \[5, 8\]"),
        (lambda t: t.update(prototypes=torch.ones(0, 2**62)), r"prototypes is \[0, 4611"),
        (lambda t: t.update(class_counts=torch.ones(5)), "class_counts is float32 instead of int64"),
    ],
)
def test_centers_that_are_not_the_classes_are_refused(copied, change, message):
    change_tensors(copied, change, "centers.safetensors")
    with harmless(message):
        _ = zoo.open(copied).centers


def test_weights_in_half_precision_are_no_mistake(copied):
    change_tensors(
        copied,
        lambda t: t.update({k: v.half() for k, v in t.items() if v.is_floating_point()}),
        "model.safetensors",
    )
    assert {p.dtype for p in zoo.load(copied).parameters()} == {torch.float32}


class Exploit:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "centers.safetensors", "config.json", "metrics.json", "recipe.yaml", "README.md"],
)
@pytest.mark.parametrize("form", ["pickle", "torch", "old torch"])
def test_a_pickle_under_any_name_is_named_and_not_unpickled(copied, tmp_path, name, form):
    mark = tmp_path / "owned"
    stream = io.BytesIO()
    if form == "pickle":
        pickle.dump(Exploit(mark), stream)
    else:
        torch.save({"a": Exploit(mark)}, stream, _use_new_zipfile_serialization=form == "torch")
    (copied / name).write_bytes(stream.getvalue())
    if name in format.HASHED:
        record_hash(copied, name)
    with harmless(f"{name}: this is a .*pickle; nothing was unpickled"):
        release = zoo.open(copied)
        _ = release.metrics, release.recipe, release.card, release.centers, release.load()
    assert not mark.exists()


# --- hashes ---


@pytest.mark.parametrize("name", ["model.safetensors", "centers.safetensors"])
def test_one_changed_byte_is_refused_on_load(copied, name):
    data = bytearray((copied / name).read_bytes())
    data[-1] ^= 1
    (copied / name).write_bytes(data)
    with harmless(f"{name}: sha256 .*, but config.json records"):
        release = zoo.open(copied)
        _ = release.load() if name == "model.safetensors" else release.centers


@pytest.fixture
def record(tmp_path, monkeypatch):
    """An empty record of verified files, in which also files of this moment count as settled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verified, "_SETTLED_NS", -1)
    return tmp_path / "cache" / "zoo" / "verified.json"


def hashes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Hash as before, and note which files."""
    asked: list[Path] = []
    monkeypatch.setattr(verified, "sha256", lambda file: asked.append(file) or format.sha256(file))
    return asked


def test_a_file_is_hashed_by_its_first_load_alone(copied, record, monkeypatch):
    hashed = hashes(monkeypatch)
    zoo.load(copied)
    zoo.load(copied)
    zoo.load(copied, in_chans=1)
    assert hashed == [copied / "model.safetensors"]
    zoo.open(copied).verify()
    assert len(hashed) == 4, "verify reads every byte"


def test_a_changed_file_is_hashed_again_though_size_and_times_look_the_same(copied, record):
    weights = copied / "model.safetensors"
    zoo.load(copied)
    status = weights.stat()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    with harmless("sha256"):
        zoo.load(copied)


def test_a_record_for_another_hash_does_not_count(copied, record):
    zoo.load(copied)
    edit(copied, "zoo", "weights_sha256", value="0" * 64)
    with harmless("config.json records 0000"):
        zoo.load(copied)


def test_a_file_of_this_moment_is_not_recorded(copied, record, monkeypatch):
    monkeypatch.setattr(verified, "_SETTLED_NS", 10**10)
    zoo.load(copied)
    assert not record.exists()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"[" * 100_000, b"\xff", b'{"a": 1}', b"x" * (2 << 20), pickle.dumps(1)]
)
def test_a_damaged_record_is_begun_anew(copied, record, monkeypatch, content):
    record.parent.mkdir(parents=True)
    record.write_bytes(content)
    hashed = hashes(monkeypatch)
    zoo.load(copied)
    zoo.load(copied)
    assert len(hashed) == 1


def test_the_record_keeps_the_newest_files(tmp_path, record, monkeypatch):
    monkeypatch.setattr(verified, "MAX_ENTRIES", 2)
    for index in range(3):
        (tmp_path / str(index)).write_bytes(bytes([index]))
        verified.check_sha256(tmp_path / str(index), format.sha256(tmp_path / str(index)))
    assert list(json.loads(record.read_text())) == [str(tmp_path / "1"), str(tmp_path / "2")]


def test_without_a_place_for_the_record_files_are_hashed_each_time(copied, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made in a file
    hashed = hashes(monkeypatch)
    zoo.load(copied)
    zoo.load(copied)
    assert len(hashed) == 2


# --- YAML ---

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
YAML_BOMBS = {
    "billion laughs": (LAUGHS, "anchors are not allowed"),
    "an alias": ("a: *b", "aliases are not allowed"),
    "depth": ("a: " + "[" * 100_000, "nested deeper than 32 levels"),
    "depth in blocks": (
        "".join(" " * level + "a:\n" for level in range(200)),
        "nested deeper than 32 levels",
    ),
    "size": ("a: 1\n" * 100_000, "found 500,000 bytes"),
    "code": ("a: !!python/object/apply:os.system [touch owned]", "not valid YAML"),
    "twice": ("a: 1\na: 2", 'duplicate key "a"'),
    "a word": ("word", "found a str|no metadata"),
    "a number of many digits": ("a: " + "9" * 100_000, "not valid YAML"),
}


@pytest.mark.parametrize("case", YAML_BOMBS)
def test_bombs_in_the_recipe_are_refused(copied, case):
    text, message = YAML_BOMBS[case]
    (copied / "recipe.yaml").write_text(text)
    record_hash(copied, "recipe.yaml")
    with harmless(rf"recipe\.yaml: .*({message})"):
        _ = zoo.open(copied).recipe


@pytest.mark.parametrize("case", YAML_BOMBS)
def test_bombs_in_the_cards_metadata_are_refused(copied, case):
    text, message = YAML_BOMBS[case]
    (copied / "README.md").write_text(f"---\n{text}\n---\n\n# Card\n")
    with harmless(rf"README\.md: .*({message})"):
        format.read_front_matter(zoo.open(copied).card, str(copied / "README.md"))


@pytest.mark.parametrize("text", ["", "# Card", "---\na: 1\n", "a: 1\n---\n", "---\n---\n"])
def test_a_card_without_metadata_is_refused(text):
    with harmless("found no metadata"):
        format.read_front_matter(text, "README.md")


def test_a_cards_own_metadata_is_read_as_huggingface_hub_reads_it(released):
    from huggingface_hub import ModelCard

    found = format.read_front_matter(released.card, "README.md")
    assert found == ModelCard(released.card).data.to_dict()


# --- metrics.json ---


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"training": []}, '"training" is no section'),
        ({"evaluations": {}}, '"evaluations" is no list'),
        ({"evaluations": ["x"]}, "evaluation 0 needs the words protocol, data, split"),
        ({"evaluations": [{"protocol": 1, "data": "d", "split": "s", "metrics": {}}]}, "evaluation 0 needs"),
        (
            {"evaluations": [{"protocol": "p", "data": "d", "split": "s", "metrics": []}]},
            "evaluation 0 needs",
        ),
        (
            {"evaluations": [{"protocol": "p", "data": "d", "split": "s", "metrics": {}, "settings": 1}]},
            '"settings" is no section',
        ),
    ],
)
def test_metrics_that_no_card_can_show_are_refused(copied, metrics, message):
    (copied / "metrics.json").write_text(json.dumps(metrics))
    with harmless(message):
        _ = zoo.open(copied).metrics
    with harmless(message):
        check_release(zoo.open(copied))


# --- check_release ---


def test_a_sound_release_passes(released, tmp_path):
    check_release(released)
    check_release(release_of(tmp_path / "headless", trained_encoder()))


def test_a_snapshot_of_huggingface_hubs_cache_passes(released, tmp_path):
    blobs, snapshot = tmp_path / "models--o--n" / "blobs", tmp_path / "models--o--n" / "snapshots" / "0123"
    shutil.copytree(released.path, blobs)
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    check_release(zoo.open(snapshot))


@pytest.mark.parametrize("name", ["README.md", "curves.png", "model.safetensors", "recipe.yaml"])
def test_a_link_out_of_the_folder_is_not_published(copied, tmp_path, name):
    secret = tmp_path / "secret"
    if (copied / name).exists():
        (copied / name).rename(secret)
    else:
        secret.write_text("password")
    (copied / name).symlink_to(secret)
    with harmless(f"{name}: links to .*secret, outside the release"):
        check_release(zoo.open(copied))


def spoil_classifier(folder: Path) -> None:
    change_tensors(folder, lambda t: t["fc.bias"].add_(1), "model.safetensors")


def spoil_classifiers_shape(folder: Path) -> None:
    change_tensors(folder, lambda t: t.update({"fc.weight": torch.ones(5, 63)}), "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (spoil_classifier, "fc.bias is not the bias in centers.safetensors"),
        (spoil_classifiers_shape, r"fc.weight is \[5, 63\] instead of \[5, 64\]"),
        (lambda f: (f / "README.md").unlink(), "README.md is missing"),
        (lambda f: (f / "recipe.yaml").write_text("a: 1"), "recipe.yaml: sha256"),
        (lambda f: edit(f, "zoo", "feature_dim", value=63), "feature_dim is 63, the model has 64 features"),
    ],
)
def test_a_release_whose_parts_disagree_does_not_pass(copied, damage, message):
    damage(copied)
    with harmless(message):
        check_release(zoo.open(copied))


def test_a_release_that_changed_after_it_was_opened_does_not_pass(copied):
    release = zoo.open(copied)
    edit(copied, "zoo", "description", value="another")
    with harmless("has changed since the release was opened"):
        check_release(release)


# --- sections of the wrong kind ---


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("evaluations", 0, "test_set"), 5, 'evaluation 0: "test_set" is no section'),
        (("evaluations", 0, "train_set"), True, 'evaluation 0: "train_set" is no section'),
        (("evaluations", 0, "test_set"), {"hub_id": [1]}, 'test_set: "hub_id": found'),
        (("training", "seed"), 10**400, '"training.seed": found a number of more than 63 bits'),
    ],
)
def test_metrics_that_a_card_cannot_be_made_of_are_refused(copied, path, value, message):
    entry = {"protocol": "knn", "data": "digits", "split": "test", "metrics": {"accuracy": 50.0}}
    metrics = {"training": {}, "evaluations": [entry]}
    section = metrics
    for key in path[:-1]:
        section = section[key]
    section[path[-1]] = value
    (copied / "metrics.json").write_text(json.dumps(metrics))
    with harmless(message):
        zoo.open(copied).render_card()
    (copied / "metrics.json").write_text('{"training": {"seconds": 1e999}}')
    with harmless("found inf, expected a finite number"):
        zoo.open(copied).render_card()


@pytest.mark.parametrize("value", [{"a": 1}, "5", -1])
def test_a_dataset_of_no_number_of_images_is_refused(copied, value):
    edit(copied, "zoo", "dataset", value={"name": "digits", "num_images": value, "num_classes": 5})
    with harmless(r'zoo\.dataset: "num_images": found'):
        zoo.open(copied)


@pytest.mark.parametrize(("text", "message"), [("init: x\n", '"init": found a str'), ("", "found nothing")])
def test_a_recipe_of_no_sections_is_refused(copied, text, message):
    (copied / "recipe.yaml").write_text(text)
    with harmless(message):
        zoo.open(copied).render_card()


@pytest.mark.parametrize("name", ["model.safetensors", "centers.safetensors", "recipe.yaml"])
def test_a_gigantic_file_is_refused_before_it_is_hashed(copied, name):
    os.truncate(copied / name, 50 << 30)  # a hole: takes no space
    with harmless("damaged, cut off or no safetensors|found 53,687,091,200 bytes"):
        check_release(zoo.open(copied))


def test_views_of_a_recipe_that_cannot_be_read_with_are_refused(copied):
    (copied / "recipe.yaml").write_text("views: {workers: many, backend: tensor}\n")
    with pytest.raises(ReleaseError, match=r'recipe\.yaml: views: "workers": found .many.'):
        zoo.evaluate(copied, "knn", "digits", device="cpu", save=False)
