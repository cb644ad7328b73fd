"""A converted release is a release: it loads and evaluates; the command prints what it took."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

import zoo
from tests import convert_helpers as made
from tests import warm
from tests.release_helpers import randomised
from zoo.convert.families import FAMILIES, PUBLISHED, Published
from zoo.errors import DataError, ReleaseError
from zoo.release import Release, card, format

ARCH = "cifar_resnet20"
COUNTS = [*range(10, 0, -1)]
NAME = "resnet18.moco_v2_made_here"
GIVEN: dict[str, Any] = dict(
    arch=ARCH, preprocess={"input_size": 8}, class_counts=COUNTS, dataset="digits, long tail 50"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = randomised(made.PaCo(classes=10))
    return made.save(tmp_path_factory.mktemp("files") / "moco_ckpt_0400.pth.tar", source)


@pytest.fixture
def release(file: Path, tmp_path: Path) -> Release:
    """Of digits, by what the user says: the weights are random."""
    return zoo.convert(file, "paco", tmp_path / "out", labels="digits", **GIVEN)


def test_the_command_prints_what_it_took_and_left_out_and_how_to_load(file: Path, tmp_path: Path) -> None:
    labels, counts, out = tmp_path / "labels.txt", tmp_path / "counts.txt", tmp_path / "out"
    labels.write_text("\n".join(f"class {index}" for index in range(10)) + "\n")
    counts.write_text("\n".join(map(str, COUNTS)))
    done = warm.zoo(
        *("convert", file, "--family", "paco", "--arch", ARCH, "--out", out, "--name", f"{ARCH}.mine"),
        *("--labels", labels, "--class-counts", counts, "--set", "mean=[0.5,0.5,0.5]"),
        *("--license", "cc0-1.0"),
    )
    assert done.returncode == 0, done.stderr
    for line in (
        "    centers of the momentum encoder: linear_k.weight, linear_k.bias",
        "input: 32 pixels, crop 1, bilinear, mean (0.5, 0.5, 0.5), std (0.2023, 0.1994, 0.201)",
    ):
        assert line in done.stdout
    release = zoo.open(out)
    release.verify()
    assert (release.name, release.class_names[3]) == (f"{ARCH}.mine", "class 3")
    assert release.require_centers().class_counts.tolist() == COUNTS


def test_the_recipe_records_the_conversion_which_is_the_same_twice(release, file, tmp_path) -> None:
    assert release.require_centers().class_counts.tolist() == COUNTS
    record = release.recipe["converted"]
    assert (record["file"], record["sha256"], record["label_order"]) == (file.name, format.sha256(file), None)
    assert record["repository"] and "digits, long tail 50" in release.card
    assert (release.recipe["objective"], release.metrics["evaluations"]) == ({"name": "paco"}, [])
    again = zoo.convert(file, "paco", tmp_path / "again", labels=release.class_names, **GIVEN)
    assert again.config == release.config
    assert release.config["pretrained_cfg"]["license"] == "mit"  # the repository's, until one is set
    own = release.with_license("cc-by-4.0")
    own.verify()
    assert "that the repository states" not in own.card + own.recipe["description"]
    card.check_card(own.path, own.config)


def test_it_is_evaluated_like_any_release(release: Release) -> None:
    with pytest.raises(DataError, match="was converted and names no data of its own"):
        zoo.evaluate(release, "knn")
    zoo.evaluate(release, "classifier", data="digits")
    assert [entry["protocol"] for entry in zoo.open(release.path).metrics["evaluations"]] == ["classifier"]
    card.check_card(release.path, release.config)


def test_a_checkpoint_is_fetched_once_and_converted_by_its_name_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.chdir(tmp_path)
    served = made.save(tmp_path / "made.pth.tar", made.MoCo())
    whole = served.read_bytes()
    md5 = hashlib.md5(whole).hexdigest()[:8]
    monkeypatch.setitem(PUBLISHED, NAME, Published(served.as_uri(), "moco", md5))
    served.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ReleaseError, match=f"expected {md5}"):
        zoo.convert(NAME)
    served.write_bytes(whole)
    release = zoo.convert(NAME)
    assert release.path == Path("runs", NAME) and release.name == NAME
    assert release.config["zoo"]["dataset"]["name"] == "ImageNet-1k"
    served.unlink()
    assert zoo.convert(NAME, out="again").config == release.config  # of what was fetched before
    next(Path("torch").rglob("*.tar")).unlink()
    with pytest.raises(ReleaseError, match=NAME):
        zoo.convert(NAME, out="never")


def test_other_names_are_told_the_nearest() -> None:
    with pytest.raises(ReleaseError, match=r'Did you mean "resnet50\.moco_v2_800ep"\?'):
        zoo.convert("resnet50.moco_v2_80ep")
    for name, entry in PUBLISHED.items():
        assert name.partition(".")[0] in FAMILIES[entry.family].architectures
