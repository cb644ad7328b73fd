"""The command line's `--data SPEC`."""

from pathlib import Path

import pytest

from zoo.data import parse_data_spec
from zoo.data.config import Folder, HubDataset, ListFiles, LongTail, Parquet
from zoo.errors import ZooError


@pytest.mark.parametrize(
    ("text", "source", "root"),
    [
        ("folder:/d", Folder(), Path("/d")),
        ("folder:d/e?test=test", Folder(test="test"), Path("d/e")),
        ("list:D?train=a.txt&test=b.txt", ListFiles(train="a.txt", test="b.txt"), Path("D")),
        ("parquet:D", Parquet(), Path("D")),
        (
            "parquet:D?train=t-*.parquet&test=v.parquet&image=image&label=fine_label",
            Parquet(train="t-*.parquet", test="v.parquet", image="image", label="fine_label"),
            Path("D"),
        ),
        ("hub:a/b", HubDataset(repo="a/b"), None),
        (
            "hub:a/b@refs/convert/parquet?test=validation&config=c",
            HubDataset(repo="a/b", revision="refs/convert/parquet", config="c", test="validation"),
            None,
        ),
    ],
)
def test_reads_kind_folder_and_keys(text, source, root):
    config, found = parse_data_spec(text)
    assert (config.source, found, config.long_tail) == (source, root, None)


def test_reads_embedded_data_and_its_long_tail():
    config, root = parse_data_spec("digits?imbalance=100&seed=3")
    assert config.source.kind == "digits"
    assert root is None
    assert config.long_tail == LongTail(imbalance=100, seed=3)


def test_reads_a_boolean():
    config, _ = parse_data_spec("cifar100:D?download=true")
    assert config.source.download is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digit", 'unknown kind "digit".*Did you mean "digits"'),
        ("parquet:D?labl=x", 'unknown key "labl".*Did you mean "label"'),
        ("folder:D?imbalanse=10", 'Did you mean "imbalance"'),
        ("digits?imbalance=many", "imbalance"),
        ("digits?seed=1", 'missing key "long_tail.imbalance"'),
        ("list:D?train=a", "test"),
        ("digits?imbalance", "expected key=value, each key once"),
        ("digits?imbalance=2&imbalance=3", "each key once"),
        ("cifar10:D?download=yes", "download"),
        ("digits?fraction=0.1&per_class=5", "subset: found both of fraction and per_class"),
        ("hub", "repo"),
        ("hub:photos", "repo.*photos"),
        ("hub:a/../b", "repo"),
        ("hub:a/b@..", 'revision: found ".."'),
        ("hub:a/b?revision=x", "each key once"),
        ("", "unknown kind"),
    ],
)
def test_mistakes_name_what_does_not_fit(text, message):
    with pytest.raises(ZooError, match=message) as caught:
        parse_data_spec(text)
    assert "\n" not in str(caught.value)


def test_a_home_of_nobody_is_refused():
    with pytest.raises(ZooError, match="data "):
        parse_data_spec("folder:~nobody-here/x")
