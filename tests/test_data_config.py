"""The sections `data` and `views` of a recipe, and specs of data: what they accept, and how they refuse."""

import subprocess
import sys
from pathlib import Path

import pytest

from zoo.config import dump_yaml, load_yaml, parse
from zoo.data.config import (
    DataConfig,
    Folder,
    ListFiles,
    LongTail,
    Parquet,
    Subset,
    TorchvisionSource,
    ViewsConfig,
    parse_data_spec,
)
from zoo.errors import RecipeError, ZooError

EVAL = {"size": 32, "crop_pct": 1.0, "interpolation": "bicubic"}
ALL_OPS = [
    {"op": "random_resized_crop", "size": 32, "scale": [0.2, 1.0], "ratio": [0.75, 1.25]},
    {"op": "pad_crop", "size": 32, "padding": 4},
    {"op": "horizontal_flip", "p": 0.5},
    {"op": "color_jitter", "p": 0.8, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    {"op": "grayscale", "p": 0.2},
    {"op": "gaussian_blur", "p": 0.5, "sigma": [0.1, 2.0], "kernel_size": 5},
    {"op": "solarize", "p": 0.2, "threshold": 128},
    {"op": "random_affine", "degrees": 10, "translate": [0.1, 0.1], "scale": [0.9, 1.1]},
    {"op": "cutout", "p": 1.0, "size": 16},
    {"op": "auto_augment", "policy": "cifar10"},
    {"op": "rand_augment", "num_ops": 2, "magnitude": 9},
]


def views(ops):
    return parse(ViewsConfig, {"train": [ops], "eval": EVAL}, "r")


def test_every_op_survives_yaml_unchanged():
    config = views(ALL_OPS)
    again = parse(ViewsConfig, load_yaml(dump_yaml(config.model_dump()), "r"), "r")
    assert again == config
    assert [op.op for op in again.train[0]] == [op["op"] for op in ALL_OPS]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ({"op": "horizontal_flp"}, 'Did you mean "horizontal_flip"'),
        ({"op": "horizontal_flip", "p": 1.5}, "less than or equal to 1"),
        ({"op": "pad_crop", "size": 32, "pading": 4}, 'Did you mean "padding"'),
        ({"op": "random_resized_crop", "size": 8, "scale": [1.0, 0.2]}, r"expected \[low, high\]"),
        ({"op": "random_resized_crop", "size": 8, "scale": [0.2, 1.2]}, "less than or equal to 1"),
        ({"op": "color_jitter", "hue": 0.6}, "less than or equal to 0.5"),
    ],
)
def test_wrong_ops_are_refused_by_name(op, message):
    with pytest.raises(RecipeError, match=message):
        views([op])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": {"kind": "cifar"}}, 'Did you mean "cifar1'),
        ({"source": {"kind": "digits"}, "long_tail": {"imbalance": 0.01}}, "greater than or equal to 1"),
        ({"source": {"kind": "digits"}, "long_tail": {"profile": "exp", "imbalance": 10}}, "exponential"),
        ({"source": {"kind": "digits"}, "partial_labels": {"kind": "uniform", "rate": 1.0}}, "less than 1"),
    ],
)
def test_wrong_data_sections_are_refused_by_name(data, message):
    with pytest.raises(RecipeError, match=message):
        parse(DataConfig, data, "r")


def test_reading_a_configuration_imports_no_torch():
    code = "import sys, zoo.data, zoo.data.config; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


# --- the command line's --data SPEC ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "source", "root"),
    [
        ("folder:/d", Folder(), Path("/d")),
        ("list:D?train=a.txt&test=b.txt", ListFiles(train="a.txt", test="b.txt"), Path("D")),
        ("parquet:D", Parquet(), Path("D")),
        (
            "parquet:D?train=t-*.parquet&test=v.parquet&image=image&label=fine_label",
            Parquet(train="t-*.parquet", test="v.parquet", image="image", label="fine_label"),
            Path("D"),
        ),
        ("cifar100:D", TorchvisionSource(kind="cifar100"), Path("D")),
    ],
)
def test_reads_kind_folder_and_keys(text, source, root):
    config, found = parse_data_spec(text)
    assert (config.source, found, config.long_tail) == (source, root, None)


def test_reads_a_long_tail_few_labels_and_the_seed_of_each_that_is_asked_for():
    both = parse_data_spec("digits?imbalance=10&fraction=0.1&seed=3")[0]
    assert both.long_tail == LongTail(imbalance=10, seed=3)
    assert both.subset == Subset(fraction=0.1, seed=3)
    few = parse_data_spec("digits?per_class=5&seed=3")[0]
    assert (few.long_tail, few.subset) == (None, Subset(per_class=5, seed=3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digit", 'no folder or file "digit".*Did you mean "digits"'),
        ("parquet:D?labl=x", 'unknown key "source.labl".*Did you mean "label"'),
        ("digits?seed=1", 'unknown key "source.seed"'),
        ("list:D?train=a", "test"),
        ("digits?imbalance", "long_tail.imbalance"),
        ("digits?fraction=0.1&per_class=5", "either fraction or per_class"),
        ("", "no folder or file"),
    ],
)
def test_mistakes_name_what_does_not_fit(text, message):
    with pytest.raises(ZooError, match=message) as caught:
        parse_data_spec(text)
    assert "\n" not in str(caught.value)
