"""The sections `data` and `views` of a recipe, and specs of data: what they accept, and how they refuse."""

from pathlib import Path

import pytest

from zoo.config import parse
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


@pytest.mark.parametrize(
    ("schema", "section", "message"),
    [
        (ViewsConfig, {"train": [[{"op": "horizontal_flp"}]]}, 'Did you mean "horizontal_flip"'),
        (ViewsConfig, {"train": [[{"op": "pad_crop", "size": 3, "pading": 4}]]}, 'Did you mean "padding"'),
        (
            ViewsConfig,
            {"train": [[{"op": "random_resized_crop", "size": 8, "scale": [1.0, 0.2]}]]},
            r"expected \[low, high\]",
        ),
        (DataConfig, {"source": {"kind": "cifar"}}, 'Did you mean "cifar1'),
        (DataConfig, {"source": {"kind": "digits"}, "long_tail": {"imbalance": 0.01}}, "equal to 1"),
    ],
)
def test_wrong_sections_are_refused_by_name(schema, section, message):
    with pytest.raises(RecipeError, match=message):
        parse(schema, {"eval": {"size": 32}, **section} if schema is ViewsConfig else section, "r")


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
