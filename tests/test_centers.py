"""Class centers as a product: their similarity, the nearest classes of an image, the map of classes."""

from __future__ import annotations

import copy
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

import zoo
from tests.release_helpers import CLASSES, release_of, some_centers, trained_encoder
from zoo.cli import app
from zoo.modules import Centers
from zoo.release import Release
from zoo.report.features import cluster

PACO, MOCO = "cifar_resnet20.paco_digits_lt50", "cifar_resnet20.moco_v2_ft_digits_lt50"
DIGITS = tuple("0123456789")


def digit(seed: int = 0) -> Image.Image:
    pixels = np.random.RandomState(seed).randint(0, 255, (8, 8)).astype("uint8")
    return Image.fromarray(pixels)  # grey, as people's pictures of digits are


def groups(of: int, members: int, noise: float) -> Centers:
    """Classes in groups that point in one direction each, shuffled."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(64, of, generator=generator)).Q.T
    weight = directions.repeat_interleave(members, 0)
    weight = weight + noise * torch.randn(len(weight), 64, generator=generator) / 8
    shuffled = torch.randperm(len(weight), generator=generator)
    names = tuple(f"{int(c) // members}" for c in shuffled)
    count = len(weight)
    return Centers(weight[shuffled], torch.zeros(count), torch.arange(count) + 1, class_names=names)


def test_a_release_s_centers_know_their_classes_and_their_file_holds_tensors_alone() -> None:
    centers = zoo.open(PACO).centers
    assert centers is not None
    assert centers.class_names == DIGITS
    weight, bias, counts, prototypes = centers  # as before there were names
    assert (tuple(weight.shape), tuple(bias.shape), prototypes) == ((10, 64), (10,), None)
    assert counts.tolist() == [125, 80, 52, 33, 21, 14, 9, 5, 3, 2]
    assert zoo.open(MOCO).centers is None


def test_centers_with_names_are_written_without_them(tmp_path: Path) -> None:
    centers = some_centers(64)._replace(class_names=tuple("abcde"))
    release = release_of(tmp_path / "release", trained_encoder(), centers=centers)
    assert set(load_file(release.path / "centers.safetensors")) == {"weight", "bias", "class_counts"}
    read = release.centers
    assert read is not None
    assert read.class_names == tuple(f"class {index}" for index in range(CLASSES))  # the release's
    moved = copy.deepcopy(read._replace(bias=read.bias + 1))
    assert torch.equal(moved.bias, read.bias + 1)
    assert torch.equal(moved.weight, read.weight)
    assert moved.class_names == read.class_names


def test_similarity_is_the_cosine_of_the_centers() -> None:
    weight = torch.tensor([[2.0, 0.0], [3.0, 3.0], [0.0, -1.0], [0.0, 0.0]])
    found = Centers(weight, torch.tensor([9.0, 0, 0, 0]), torch.ones(4).long()).similarity()
    half = 0.5**0.5
    expected = torch.tensor([[1, half, 0, 0], [half, 1, -half, 0], [0, -half, 1, 0], [0, 0, 0, 0.0]])
    torch.testing.assert_close(found, expected)


def test_the_nearest_other_class_is_never_the_class_itself() -> None:
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]])
    cosine, index = Centers(weight, torch.zeros(3), torch.ones(3).long()).nearest_other()
    assert index.tolist() == [1, 0, 1]
    assert cosine.tolist() == pytest.approx([1 / 1.01**0.5, 1 / 1.01**0.5, -1 / 1.01**0.5])
    with pytest.raises(zoo.ZooError, match="at least 2"):
        Centers(weight[:1], torch.zeros(1), torch.ones(1).long()).nearest_other()


def test_nearest_classes_are_those_of_the_largest_logits_the_bias_included() -> None:
    centers = Centers(torch.eye(3), torch.tensor([0.0, 0.0, 2.0]), torch.ones(3).long())
    probability, index = centers.nearest(torch.tensor([[1.0, 0.5, 0.0], [5.0, 0.0, 0.0]]), k=2)
    assert index.tolist() == [[2, 0], [0, 2]]
    total = np.exp([1.0, 0.5, 2.0]).sum()
    assert probability[0].tolist() == pytest.approx([np.exp(2) / total, np.exp(1) / total])
    assert centers.nearest(torch.zeros(1, 3), k=9).index.shape == (1, 3)
    with pytest.raises(zoo.ZooError, match="k: found 0"):
        centers.nearest(torch.zeros(1, 3), k=0)


def test_an_image_s_nearest_classes_are_the_classifier_s() -> None:
    release = zoo.open(PACO)
    image = digit()
    with torch.no_grad():
        logits = zoo.load(PACO, head="centers").eval()(release.transform()(image)[None])
    expected = sorted(zip(DIGITS, logits.softmax(1)[0].tolist(), strict=True), key=lambda pair: -pair[1])
    found = release.nearest_classes(image, k=10)
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert [p for _, p in found] == pytest.approx([p for _, p in expected], abs=1e-6)
    assert release.nearest_classes(image, k=3) == found[:3]
    assert release.nearest_classes(image, k=99) == found
    assert release.nearest_classes(image.convert("RGBA"), k=10) == found


def test_the_encoder_is_read_once_for_all_images(tmp_path: Path) -> None:
    release = zoo.open(Path(shutil.copytree(zoo.open(PACO).path, tmp_path / "copy")))
    first = release.nearest_classes(digit())
    (release.path / "model.safetensors").unlink()
    assert release.nearest_classes(digit()) == first
    assert release.nearest_classes(digit(1)) != first


def test_what_has_no_centers_says_so_and_what_to_use() -> None:
    message = r"moco_v2_ft_digits_lt50 has no centers: its objective learned none.*zoo evaluate knn"
    with pytest.raises(zoo.ZooError, match=message):
        zoo.open(MOCO).nearest_classes(digit())


def test_other_things_than_images_and_counts_are_refused() -> None:
    release = zoo.open(PACO)
    with pytest.raises(zoo.ZooError, match="image: found a str, expected a PIL image"):
        release.nearest_classes("digit.png")  # type: ignore[arg-type]
    for k in (0, True, 1.5):
        with pytest.raises(zoo.ZooError, match=r"k: found .*, expected 1 or more"):
            release.nearest_classes(digit(), k=k)  # type: ignore[arg-type]


def test_centers_and_nearest_classes_need_no_plots_data_or_training() -> None:
    code = (
        "import sys, zoo\nfrom PIL import Image\n"
        f"release = zoo.open('{PACO}')\nrelease.centers.similarity()\n"
        "release.nearest_classes(Image.new('L', (8, 8)))\n"
        "heavy = {'matplotlib', 'scipy', 'sklearn', 'zoo.data', 'zoo.training', 'zoo.evaluation'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("of", "members"), [(2, 5), (50, 5)])
def test_the_map_s_order_puts_alike_classes_side_by_side(of: int, members: int) -> None:
    centers = groups(of, members, noise=0.5)
    order = cluster(centers.similarity().double().numpy())
    assert sorted(order.tolist()) == list(range(of * members))
    names = [centers.class_names[c] for c in order]
    assert sum(a != b for a, b in itertools.pairwise(names)) == of - 1


def test_a_new_release_shows_the_map_in_its_card(paco: Release, moco: Release) -> None:
    assert (paco.path / "centers.png").read_bytes().startswith(b"\x89PNG")
    assert "](centers.png)" in paco.card
    assert "centers.png" not in moco.card
    assert not (moco.path / "centers.png").exists()


def test_show_lists_the_centers_and_predict_the_nearest_classes_of_an_image(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["show", PACO, "--full"])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    first = next(place for place, words in enumerate(lines) if words[:1] == ["CLASS"])
    assert lines[first + 1][:2] == ["0", "125"]
    assert lines[first + 4][:2] == ["3", "33"]
    unit = torch.nn.functional.normalize(zoo.open(PACO).centers.weight.double())
    cosines = (unit @ unit[3]).index_fill(0, torch.tensor([3]), -2.0)
    assert lines[first + 4][-2:] == [str(int(cosines.argmax())), f"{float(cosines.max()):.2f}"]

    digit().save(tmp_path / "x.png")
    done = CliRunner().invoke(app, ["predict", PACO, str(tmp_path / "x.png"), "--top", "2"])
    expected = zoo.open(PACO).nearest_classes(digit(), k=2)
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert rows == [[str(tmp_path / "x.png"), name, f"{p:.3f}"] for name, p in expected]
    for words, message in (([MOCO, "x.png"], "has no centers"), ([PACO, "absent.png"], "absent.png")):
        done = CliRunner().invoke(app, ["predict", *words])
        assert isinstance(done.exception, zoo.ZooError) and message in str(done.exception)
