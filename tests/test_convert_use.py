"""A converted release is a release: it loads, evaluates and fine-tunes; the command prints what it took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F
from zoo.conversion import ConvertedRecipe

import zoo
from tests import convert_helpers as made
from tests import warm
from zoo import cli
from zoo.cli.show import print_release
from zoo.config import dump_yaml
from zoo.errors import DataError
from zoo.release import Release, card
from zoo.release.check import check_release

ARCH = "cifar_resnet20"


@pytest.fixture(scope="module")
def source() -> Any:
    return made.randomised(made.PaCo(classes=10))


@pytest.fixture(scope="module")
def file(source: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(tmp_path_factory.mktemp("files") / "moco_ckpt_0400.pth.tar", source)


@pytest.fixture
def release(file: Path, tmp_path: Path) -> Release:
    """Of digits, by what the user says: the weights are random."""
    return zoo.convert(
        file,
        "paco",
        tmp_path / "out",
        arch=ARCH,
        size=8,
        labels="digits",
        class_counts="digits?imbalance=50",
        dataset="digits, long tail 50",
    )


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return warm.zoo("convert", *arguments)


def test_the_command_prints_what_it_took_and_left_out_and_how_to_load(file: Path, tmp_path: Path) -> None:
    labels, counts = tmp_path / "labels.txt", tmp_path / "counts.txt"
    labels.write_text("\n".join(f"class {index}" for index in range(10)) + "\n")
    counts.write_text("\n".join(map(str, range(10, 0, -1))))
    out = tmp_path / "out"
    done = run(
        *(file, "--family", "paco", "--arch", ARCH, "--out", out, "--name", f"{ARCH}.mine"),
        *("--labels", labels, "--class-counts", counts, "--mean", "0.5,0.5,0.5", "--license", "cc0-1.0"),
        *("--arg", "drop_rate=0.0", "--dataset", "CIFAR-10-LT"),
    )
    assert done.returncode == 0, done.stderr
    for line in (
        "from moco_ckpt_0400.pth.tar, paco, query encoder, epoch 12",
        "  taken     query encoder: 114 tensors",
        "  taken     centers: 2 tensors",
        "  left out  momentum encoder: 114 tensors",
        "  left out  centers of the momentum encoder: 2 tensors",
        "  left out  projection head: encoder_q.fc.* (9), encoder_k.fc.* (9)",
        "  input     32 pixels, crop 1, bilinear, mean (0.5, 0.5, 0.5), std (0.2023, 0.1994, 0.201)",
        "  licence   cc0-1.0",
        f'load it:  zoo.load("{out}")',
    ):
        assert line in done.stdout
    release = zoo.open(out)
    release.verify()
    assert release.name == f"{ARCH}.mine"
    assert release.class_names[3] == "class 3"
    assert release.centers is not None
    assert release.centers.class_counts.tolist() == list(range(10, 0, -1))
    assert release.config["zoo"]["dataset"] == {"name": "CIFAR-10-LT"}
    assert release.config["model_args"] == {"drop_rate": 0.0}


def test_a_conversion_without_a_licence_has_the_repositorys_until_one_is_set(
    file: Path, tmp_path: Path
) -> None:
    done = run(file, "--family", "paco", "--arch", ARCH, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    repository = "https://github.com/dvlab-research/Parametric-Contrastive-Learning"
    assert f"  licence   mit, that of {repository}; for weights of your own: --license ID" in done.stdout
    release = zoo.open(tmp_path / "out")
    assert "The licence is the one that the repository states." in release.card
    own = release.with_license("cc-by-4.0")
    own.verify()
    assert "that the repository states" not in own.card + own.recipe["description"]
    assert own.recipe == {**release.recipe, "description": own.recipe["description"]}
    card.check_card(own.path, own.config)


def test_the_command_answers_a_mistake_with_one_line(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, expected in (
        (("--family", "moco"), "--family paco"),
        (("--family", "paco", "--mean", "0.5;0.5"), "--mean: found"),
        (("--family", "paco", "--arg", "img_size"), '--arg "img_size": expected KEY=VALUE'),
        (("--family", "paco", "--arg", "img_size=32"), 'takes no argument "img_size"'),
    ):
        monkeypatch.setattr(sys, "argv", ["zoo", "convert", str(file), "--arch", ARCH, *options])
        with pytest.raises(SystemExit) as status:
            cli.main()
        assert status.value.code == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert len(printed.err.splitlines()) == 1
        assert printed.err.startswith("zoo: ")
        assert expected in printed.err


def test_labels_and_counts_can_be_those_of_a_data_set(release: Release) -> None:
    centers = release.centers
    assert centers is not None
    counts = centers.class_counts.numpy()
    assert release.class_names == tuple("0123456789")
    assert counts[0] > counts[-1]
    assert np.array_equal(counts, sorted(counts, reverse=True))
    assert "not known" not in release.config["zoo"]["description"]


def test_evaluation_asks_for_data_and_measures_on_them(release: Release, source: Any) -> None:
    with pytest.raises(
        DataError, match=r"was converted and names no data of its own; give some, e.g. --data folder:DIR"
    ):
        zoo.evaluate(release, "knn")
    with pytest.raises(DataError, match=r"found no images in the folder .*, expected CLASS/IMAGE"):
        zoo.evaluate(release, "knn", data=release.path)
    assert zoo.evaluate(release, "linear", data="digits")["metrics"]["accuracy"] > 20
    found = zoo.evaluate(release, "classifier", data="digits", save=False)["metrics"]["accuracy"]
    assert found == pytest.approx(_accuracy_by_hand(source), abs=1e-6)
    assert [entry["protocol"] for entry in zoo.open(release.path).metrics["evaluations"]] == ["linear"]
    card.check_card(release.path, release.config)


def _accuracy_by_hand(source: Any) -> float:
    """Of PaCo's own inference: the linear layer on the query encoder's features."""
    from zoo.data import open_dataset, parse_data_spec

    config, root = parse_data_spec("digits")
    test = open_dataset(config, "test", root)
    pixels = np.stack([np.asarray(test.image(index)) for index in range(len(test))])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    with torch.no_grad():
        features = source.encoder_q.features((images - mean.view(3, 1, 1)) / std.view(3, 1, 1))
        logits = F.linear(features, source.linear.weight, source.linear.bias)
    return 100 * float((logits.argmax(1) == torch.tensor(test.labels)).float().mean())


def test_other_class_names_are_told_how_to_be_given(file: Path, tmp_path: Path) -> None:
    labels = [f"c{index}" for index in range(10)]
    release = zoo.convert(file, "paco", tmp_path / "out", arch=ARCH, size=8, labels=labels)
    with pytest.raises(DataError, match='"zoo convert --labels" names them'):
        zoo.evaluate(release, "classifier", data="digits")


@pytest.mark.usefixtures("no_pictures")
def test_show_says_where_it_is_from_and_how_it_takes_images(
    release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> list[str]:
        print_release(zoo.open(release.path))
        return capsys.readouterr().out.splitlines()

    repository = "https://github.com/dvlab-research/Parametric-Contrastive-Learning"
    source = f"moco_ckpt_0400.pth.tar, paco, query encoder, epoch 12, in the layout of {repository}"
    assert shown()[3:] == [
        "input: 8 pixels, crop 1, bilinear, mean (0.4914, 0.4822, 0.4465), std (0.2023, 0.1994, 0.201)",
        "licence: mit",
        f"converted from {source}",
    ]
    for recipe, said in (
        ({"init": {"release": "timm:resnet18.a1_in1k"}}, ["training started from timm:resnet18.a1_in1k"]),
        ({"converted": ["what", "others", "wrote"]}, []),
    ):
        (release.path / "recipe.yaml").write_text(dump_yaml(recipe))
        assert shown()[5:] == said


def test_fine_tuning_starts_from_it(release: Release, tmp_path: Path) -> None:
    changes = ["training.epochs=1", "schedule.warmup_epochs=0", "optimizer.lr=0.0", "evaluation=[]"]
    out = tmp_path / "tuned"
    zoo.finetune(f"{ARCH}.ce_digits", init=release.path, head="centers", out=out, overrides=changes)
    # with a learning rate of 0 the parameters are exactly those it started from
    before, after = (dict(zoo.load(p, head="centers").named_parameters()) for p in (release.path, out))
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def test_timm_loads_it_and_computes_the_same(release: Release) -> None:
    model = timm.create_model(
        release.config["architecture"],
        num_classes=10,
        pretrained=True,
        pretrained_cfg_overlay={"file": str(release.path / "model.safetensors"), "num_classes": 10},
    )
    with torch.no_grad():
        found = model.eval()(made.images(8))
        assert torch.equal(found, release.load(head="centers").eval()(made.images(8)))


def test_the_recipe_is_the_record_of_the_conversion(release: Release, file: Path) -> None:
    record = ConvertedRecipe.model_validate(release.recipe)
    assert record.converted.file == file.name
    assert record.converted.sha256 == zoo.release.format.sha256(file)
    assert record.converted.repository in release.card
    assert record.objective == {"name": "paco"}
    assert release.metrics["training"] == {}
    assert release.metrics["evaluations"] == []
    assert "digits, long tail 50" in release.card
    card.check_card(release.path, release.config)


def test_converting_twice_gives_the_same_release(release: Release, file: Path, tmp_path: Path) -> None:
    again = zoo.convert(
        file,
        "paco",
        tmp_path / "again",
        arch=ARCH,
        size=8,
        labels=release.class_names,
        class_counts=release.centers.class_counts.tolist() if release.centers else None,
        dataset="digits, long tail 50",
    )
    assert again.config == release.config


def test_a_stem_without_activation_or_with_other_padding_is_only_that() -> None:
    torch.manual_seed(0)
    plain = timm.create_model("resnet18_cifar", num_classes=0).eval()
    bare = timm.create_model("resnet18_cifar", num_classes=0, stem_act=False, stem_padding=2).eval()
    bare.load_state_dict(plain.state_dict())
    x = made.images()
    with torch.no_grad():
        stem = bare.bn1(F.conv2d(x, bare.conv1.weight, padding=2))
        expected = stem
        for stage in (bare.layer1, bare.layer2, bare.layer3, bare.layer4):
            expected = stage(expected)
        torch.testing.assert_close(bare(x), expected.mean((2, 3)))
        assert not torch.allclose(bare(x), plain(x))


def test_it_is_pushed_and_loaded_from_the_hub(hub: Any, release: Release) -> None:
    check_release(release)
    zoo.push(release, "org/converted", token=hub.token)
    downloaded = zoo.open("org/converted@v1", token=hub.token)
    with torch.no_grad():
        found = downloaded.load(head="centers").eval()(made.images(8))
        assert torch.equal(found, release.load(head="centers").eval()(made.images(8)))
    assert downloaded.recipe == release.recipe
