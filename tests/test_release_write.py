"""Writing a release: what lies in the folder, and what a crash leaves behind."""

import errno
import fcntl
import hashlib
import json
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

import zoo
from tests.release_helpers import CLASSES, RECIPE, release_of, some_centers, trained_encoder
from zoo.errors import ReleaseError, ZooError


def test_the_folder_holds_the_contracts_files_and_the_config_is_timms(tmp_path):
    args = {"output_stride": 8}
    encoder, centers = trained_encoder("resnet18", **args), some_centers(512)
    release = release_of(tmp_path / "r", encoder, "resnet18", model_args=args, centers=centers)
    names = "config.json model.safetensors centers.safetensors recipe.yaml metrics.json README.md"
    assert {file.name for file in release.path.iterdir()} == set(names.split())
    assert [path.name for path in tmp_path.iterdir()] == ["r"], "temporary files are left"
    assert (release.path / "recipe.yaml").read_text() == RECIPE and release.recipe == yaml.safe_load(RECIPE)
    training = {"seed": 3, "hardware": "2 CPU cores"}
    assert release.metrics == {"format": 1, "training": training, "evaluations": []}
    config = json.loads((release.path / "config.json").read_text())
    assert (config["architecture"], config["model_args"]) == ("resnet18", {"output_stride": 8})
    assert config["label_names"] == [f"class {index}" for index in range(CLASSES)]
    own = {"tag": "paco_test", "input_size": [3, 32, 32], "mean": [0.1, 0.2, 0.3], "license": "apache-2.0"}
    assert config["pretrained_cfg"].items() >= own.items()
    assert not {"hf_hub_id", "url", "file"} & config["pretrained_cfg"].keys()
    for file, key in (("model.safetensors", "weights_sha256"), ("recipe.yaml", "recipe_sha256")):
        assert config["zoo"][key] == hashlib.sha256((release.path / file).read_bytes()).hexdigest()
    with safe_open(release.path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}, "transformers refuses the file"


def test_with_centers_the_weights_are_a_classifier_made_of_them_and_the_encoder_stays_as_it_is(tmp_path):
    encoder = trained_encoder().train()
    centers = some_centers(64)._replace(prototypes=torch.ones(CLASSES, 8))
    state = {key: value.clone() for key, value in encoder.state_dict().items()}
    random = torch.get_rng_state()
    release = release_of(tmp_path / "r", encoder, centers=centers)
    assert encoder.training and encoder.num_classes == 0
    assert all(torch.equal(value, state[key]) for key, value in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    tensors = load_file(release.path / "model.safetensors")
    assert torch.equal(tensors["fc.weight"], centers.weight)
    assert torch.equal(tensors["fc.bias"], centers.bias)
    assert set(tensors) == set(encoder.state_dict()) | {"fc.weight", "fc.bias"}
    assert release.centers is not None
    found = release.centers.tensors()
    assert found.keys() == centers.tensors().keys()
    assert all(torch.equal(found[name], each) for name, each in centers.tensors().items())


def test_a_head_that_is_not_one_linear_layer_keeps_the_centers_beside_the_encoder(tmp_path):
    arch, args = "deit_tiny_distilled_patch16_224", {"img_size": 32, "patch_size": 16, "depth": 1}
    encoder, centers = trained_encoder(arch, **args), some_centers(192)
    release = release_of(tmp_path / "r", encoder, arch, model_args=args, centers=centers)
    assert release.config["num_classes"] == 0 and release.centers is not None
    with pytest.raises(ReleaseError, match="centers"):
        release.load(head="centers")


def test_channels_last_and_shared_tensors_are_written(tmp_path):
    encoder = trained_encoder().to(memory_format=torch.channels_last)
    encoder.layer1[1].bn1.weight = encoder.layer1[0].bn1.weight
    release = release_of(tmp_path / "r", encoder)
    loaded = release.load().eval()
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), encoder(images))


def test_rewriting_replaces_the_release_and_its_leftovers_but_no_open_file_and_no_other(tmp_path, made):
    (tmp_path / "r" / "run").mkdir(parents=True)
    (tmp_path / "r" / "holiday.png").write_bytes(b"png")
    pictures = {"curves": made.path / "curves.png"}
    old = release_of(tmp_path / "r", trained_encoder(), centers=some_centers(64), pictures=pictures)
    assert (old.path / "holiday.png").exists()
    loaded, images = old.load().eval(), torch.randn(2, 3, 32, 32)
    before = loaded(images)
    new = release_of(tmp_path / "r", encoder := trained_encoder(seed=1))
    assert torch.equal(loaded(images), before), "the mapped file was overwritten in place"
    assert torch.equal(new.load().eval()(images), encoder(images))
    assert not {"centers.safetensors", "curves.png"} & {file.name for file in new.path.iterdir()}
    assert (new.path / "run").is_dir() and new.centers is None and (new.path / "holiday.png").exists()
    new.verify()


@pytest.mark.parametrize("moved", [0, 1, 3, 5])
def test_a_crash_leaves_the_old_release_or_the_new(tmp_path, monkeypatch, made, moved):
    """The process ends when so many of the new files are at their place; 0 is before they count."""
    old = release_of(tmp_path / "r", trained_encoder(seed=0), centers=some_centers(64)).config
    encoder, calls = trained_encoder(seed=1), []

    def count(self, target, act):
        calls.extend([target] if tmp_path in Path(target).parents else [])  # not the record of hashes
        if len(calls) > moved:
            raise KeyboardInterrupt
        return act(self, target)

    rename, replace = Path.rename, Path.replace
    monkeypatch.setattr(Path, "rename", lambda self, target: count(self, target, rename))
    monkeypatch.setattr(Path, "replace", lambda self, target: count(self, target, replace))
    with pytest.raises(KeyboardInterrupt):
        release_of(tmp_path / "r", encoder, pictures={"curves": made.path / "curves.png"})
    monkeypatch.undo()
    found = zoo.open(tmp_path / "r")
    found.verify()
    assert (found.config == old) == (moved == 0)
    assert (found.path / "centers.safetensors").exists() == (moved == 0)
    assert (found.path / "curves.png").exists() == (moved > 0)
    assert [file.name for file in found.path.glob(".*")] == []
    if moved:
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(found.load().eval()(images), encoder(images))


def test_new_files_name_no_old_ones_outside_of_the_folder(tmp_path):
    release = release_of(tmp_path / "r", trained_encoder())
    (tmp_path / "mine").touch()
    (release.path / ".writing").mkdir()
    (release.path / ".writing" / ".stale").write_text("../mine\nREADME.md")
    zoo.open(release.path)
    assert (tmp_path / "mine").exists() and not (release.path / "README.md").exists()


def test_a_crash_before_the_first_release_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "rename", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ReleaseError, match="No space left"):
        release_of(tmp_path / "r", trained_encoder())
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_that_cannot_sync_folders_takes_a_release(tmp_path, monkeypatch):
    real = os.fsync

    def of_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "Function not implemented")))
    monkeypatch.setattr(os, "fsync", of_files)
    for _ in range(2):  # the second replaces the first
        release_of(tmp_path / "r", trained_encoder()).verify()
    assert [file.name for file in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_args": {"num_classes": 3}}, "num_classes"),
        ({"metrics": {"training": {"loss": float("nan")}}}, r"training\.loss"),
        ({"centers": some_centers(64)._replace(prototypes=torch.ones(4, 8))}, r"prototypes.*\[4, 8\]"),
        ({"centers": some_centers(32)}, r"\[5, 32\]"),
        ({"encoder": zoo.backbones.create("cifar_resnet20", num_classes=4)}, "num_classes=4"),
        ({"arch": "cifar_resnet32"}, r"layer1\.3\.conv1\.weight"),
        ({"model_args": {"global_pool": "max"}}, "does not compute what the encoder does"),
        ({"license": "- "}, "license"),
    ],
)
def test_parts_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, changes, message):
    with pytest.raises(ZooError, match=message):
        release_of(tmp_path / "r", **{"encoder": trained_encoder(), **changes})
    assert not (tmp_path / "r").exists()
