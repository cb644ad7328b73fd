"""Labels as users bring them: words, classes without images, one class, one image of each."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zoo
from tests.data_fixtures import photo
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.labels import require_same_classes
from zoo.errors import DataError, TrainingError
from zoo.recipe import Recipe
from zoo.training import build_objective

CE = "cifar_resnet20.ce_digits_lt50"
BRIEF = ["training.epochs=2", "schedule.warmup_epochs=0", "training.device=cpu", "data.long_tail=null"]


def opened(source: dict[str, object], root: Path, split: str = "train") -> ImageDataset:
    return open_dataset(DataConfig.model_validate({"source": source}), split, root)  # type: ignore[arg-type]


def images(folder: Path, count: int) -> None:
    for number in range(count):
        photo(8, 8, number).save(folder / f"a b {number}.png")


def lists(folder: Path, train: str, test: str, **keys: str) -> dict[str, object]:
    images(folder, 6)
    (folder / "train.txt").write_text(train)
    (folder / "test.txt").write_text(test)
    return {"kind": "list", "train": "train.txt", "test": "test.txt", **keys}


WORDS = "a b 0.png dog\na b 1.png ant\na b 2.png dog\na b 3.png cat\n"


def test_words_of_a_list_are_classes_in_the_sorted_order_of_the_training_list(tmp_path: Path) -> None:
    source = lists(tmp_path, WORDS, "a b 4.png dog\n")
    train, test = opened(source, tmp_path), opened(source, tmp_path, "test")
    assert train.class_names == test.class_names == ("ant", "cat", "dog")
    assert train.labels.tolist() == [2, 0, 2, 1]
    assert test.labels.tolist() == [2]


def test_a_word_may_have_spaces_after_a_tab_and_digits_in_it(tmp_path: Path) -> None:
    source = lists(tmp_path, "a b 0.png\tnight owl\na b 1.png\tcat 9\n", "a b 2.png\tcat 9\n")
    train = opened(source, tmp_path)
    assert train.class_names == ("cat 9", "night owl")
    assert train.name_of(0) == "a b 0.png"
    assert opened(source, tmp_path, "test").labels.tolist() == [0]


def test_a_test_word_that_training_lacks_is_refused_with_the_nearest(tmp_path: Path) -> None:
    source = lists(tmp_path, WORDS, "a b 4.png dog\n\na b 5.png catt\n")
    with pytest.raises(
        DataError, match=r'test.txt line 3: label "catt" is none of the 3 classes.*mean "cat"'
    ):
        opened(source, tmp_path, "test")


def test_a_file_of_class_names_orders_words_and_must_have_them_all(tmp_path: Path) -> None:
    source = lists(tmp_path, WORDS, "a b 4.png dog\n", class_names="names.txt")
    (tmp_path / "names.txt").write_text("dog\ncat\nant\nowl\n")
    train = opened(source, tmp_path)
    assert train.class_names == ("dog", "cat", "ant", "owl")
    assert train.class_counts.tolist() == [2, 1, 1, 0]
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    with pytest.raises(DataError, match=r'line 2: label "ant" is none of the 2 classes'):
        opened(source, tmp_path)
    (tmp_path / "names.txt").write_text("dog\ncat\ndog\nant\n")
    with pytest.raises(DataError, match='the class "dog" twice'):
        opened(source, tmp_path)


def test_a_list_without_the_training_list_may_lack_the_last_classes_of_the_names(tmp_path: Path) -> None:
    source = lists(tmp_path, "a b 0.png 0\n", "a b 4.png 0\na b 5.png 1\n", class_names="names.txt")
    (tmp_path / "train.txt").unlink()
    (tmp_path / "names.txt").write_text("dog\ncat\nant\n")
    assert opened(source, tmp_path, "test").class_names == ("dog", "cat", "ant")
    (tmp_path / "names.txt").write_text("dog\n")
    with pytest.raises(DataError, match="line 2: found label 1, expected 0 to 0"):
        opened(source, tmp_path, "test")


def test_a_word_that_controls_a_terminal_is_no_class(tmp_path: Path) -> None:
    source = lists(tmp_path, "a b 0.png ant\na b 1.png c\x1bat\n", "a b 0.png ant\n")
    with pytest.raises(DataError, match=r"list: found a class called 'c\\x1bat'.*rename it in the lists"):
        opened(source, tmp_path)


def test_numbers_and_words_do_not_mix(tmp_path: Path) -> None:
    source = lists(tmp_path, "a b 0.png 0\na b 1.png cat\n", "a b 0.png 0\n")
    with pytest.raises(DataError, match=r"train.txt line 2: found 'cat', expected 0, 1"):
        opened(source, tmp_path)
    source = lists(tmp_path, "a b 0.png 0\na b 1.png 1\n", "a b 0.png cat\n")
    with pytest.raises(DataError, match=r"test.txt line 1: found 'cat', expected 0, 1"):
        opened(source, tmp_path, "test")


def shard(
    path: Path, labels: Sequence[object], kind: pa.DataType | None = None, names: Sequence[str] = ""
) -> None:
    encoded = []
    for number in range(len(labels)):
        buffer = io.BytesIO()
        photo(8, 8, number).save(buffer, "PNG")
        encoded.append({"bytes": buffer.getvalue(), "path": None})
    table = pa.table({"img": encoded, "label": pa.array(labels, kind)})
    if names:
        info = {"info": {"features": {"label": {"_type": "ClassLabel", "names": list(names)}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_a_parquet_column_is_classes_of_the_training_split(tmp_path: Path, kind: pa.DataType) -> None:
    shard(tmp_path / "train-0.parquet", ["dog", "ant"], kind)
    shard(tmp_path / "train-1.parquet", ["cat", "dog"], kind)
    shard(tmp_path / "test.parquet", ["dog"], kind)
    train, test = (opened({"kind": "parquet"}, tmp_path, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("ant", "cat", "dog")
    assert train.labels.tolist() == [2, 0, 1, 2]
    assert test.labels.tolist() == [2]


def test_parquet_labels_of_the_test_split_that_training_lacks_are_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train.parquet", ["dog", "ant"])
    shard(tmp_path / "test.parquet", ["ant", "dgo"])
    with pytest.raises(DataError, match=r'#1: label "dgo" is none of the 2 classes.*Did you mean "dog"'):
        opened({"kind": "parquet"}, tmp_path, "test")
    shard(tmp_path / "train.parquet", [0, 1, 2])
    shard(tmp_path / "test.parquet", [3])
    with pytest.raises(DataError, match="found label 3, expected 0 to 2, the classes of the training split"):
        opened({"kind": "parquet"}, tmp_path, "test")
    shard(tmp_path / "train.parquet", ["dog", None])
    with pytest.raises(DataError, match="1 empty labels"):
        opened({"kind": "parquet"}, tmp_path)


@pytest.mark.parametrize("names", ["cab", "abd", "abcd", "ab", ""])
@pytest.mark.parametrize("other", ["train-1", "test"])
def test_files_that_name_other_classes_or_in_another_order_are_refused(
    tmp_path: Path, other: str, names: str
) -> None:
    shard(tmp_path / "train-0.parquet", [0, 1, 2], names="abc")
    shard(tmp_path / f"{other}.parquet", [0, 1], names=names)
    message = rf'"label": .*/train-0.parquet and .*/{other}.parquet name other classes .*expected the same'
    with pytest.raises(DataError, match=message):
        opened({"kind": "parquet"}, tmp_path, "test" if other == "test" else "train")


def test_splits_with_other_classes_are_told_by_the_first_that_differ() -> None:
    def told(train: Sequence[str], test: Sequence[str]) -> str:
        with pytest.raises(DataError) as caught:
            require_same_classes(train, test)
        return str(caught.value).partition("other classes, ")[2]

    require_same_classes(["a"], ("a",))
    assert told("abc", "abd") == '3 and 3: only training has "c", only test has "d"'
    assert told("abc", "acb") == '3 and 3: class 1 is "b" in training and "c" in test'
    assert told("ab", "a") == '2 and 1: only training has "b"'
    assert told("a", "abcde") == '1 and 5: only test has "b", "c", "d", ...'


# --- classes that cannot be learned


def recipe(*changes: str) -> Recipe:
    return Recipe.load(CE, [*BRIEF, *changes])


def test_a_class_without_training_images_is_refused_by_name_where_classes_are_learned(tmp_path: Path) -> None:
    shard(tmp_path / "train.parquet", [0, 1, 3, 3], names="wxyz")
    shard(tmp_path / "test.parquet", [2, 0], names="wxyz")
    train = opened({"kind": "parquet"}, tmp_path)
    assert train.class_counts.tolist() == [1, 1, 0, 2]
    message = r'training split has no image of 1 of its 4 classes \(y\).*"classify" learns every class'
    for loss in ("cross_entropy", "balanced_softmax"):
        with pytest.raises(DataError, match=message):
            build_objective(recipe(f"objective.loss={loss}"), train)
    with pytest.raises(DataError, match=r"no image of 1 of its 4 classes \(y\).*\"paco\""):
        build_objective(Recipe.load("cifar_resnet20.paco_digits_lt50"), train)
    build_objective(Recipe.load("cifar_resnet20.moco_v2_ft_digits_lt50"), train)  # which learns none


def test_an_image_without_label_is_refused_where_classes_are_learned(tmp_path: Path) -> None:
    shard(tmp_path / "train.parquet", [0, 1, 0, 1], names="wx")
    known = opened({"kind": "parquet"}, tmp_path)
    train = ImageDataset(known._store, [0, 1, -1, 1], known.class_names)
    assert train.class_counts.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"1 of the 4 training images have no label \(-1\)"):
        build_objective(recipe(), train)
    build_objective(Recipe.load("cifar_resnet20.sup_con_digits_lt50"), train)  # which leaves it out


def test_a_long_tail_of_data_that_lack_a_class_names_it(tmp_path: Path) -> None:
    shard(tmp_path / "train.parquet", [0, 1, 3, 3], names="wxyz")
    config = {"source": {"kind": "parquet"}, "long_tail": {"imbalance": 2.0}}
    with pytest.raises(DataError, match='long_tail: class "y" has no images'):
        open_dataset(DataConfig.model_validate(config), "train", tmp_path)


def test_one_class_is_refused(tmp_path: Path) -> None:
    source = lists(tmp_path, "a b 0.png dog\na b 1.png dog\n", "a b 2.png dog\n")
    with pytest.raises(DataError, match=r"found 1 class \(dog\), expected at least 2"):
        build_objective(recipe(), opened(source, tmp_path))


def test_probes_of_a_class_without_training_images_never_predict_it(tmp_path: Path) -> None:
    """A documented behaviour: test images of such a class count as wrong."""
    shard(tmp_path / "train.parquet", [0, 1, 3, 3, 0, 1] * 2, names="wxyz")
    shard(tmp_path / "test.parquet", [2, 2, 2], names="wxyz")
    for protocol, settings in (("knn", {"k": 3}), ("linear", {"l2_grid": [0.1], "validation_fraction": 0.3})):
        entry = zoo.evaluate(
            "shipped:cifar_resnet20.moco_v2_ft_digits_lt50",
            protocol,
            f"parquet:{tmp_path}",
            save=False,
            **settings,
        )
        assert entry["metrics"]["accuracy"] == 0, protocol


@pytest.mark.usefixtures("no_pictures")
def test_one_image_of_each_class_trains_and_is_measured(tmp_path: Path) -> None:
    release = zoo.pretrain(
        recipe("data.subset={per_class: 1}", "evaluation=[{protocol: classifier}]"), out=tmp_path / "out"
    )
    (entry,) = release.metrics["evaluations"]
    assert entry["data"] == "digits, 1 labels a class"
    assert entry["train_set"]["num_images"] == 10
    assert re.search(r"subset.*per_class 1|per class 1|Subset", release.card)


def test_a_head_of_centers_is_refused_for_other_classes(tmp_path: Path) -> None:
    source = lists(tmp_path, WORDS, "a b 4.png dog\n")
    data = opened(source, tmp_path)
    start = 'init={release: "shipped:cifar_resnet20.paco_digits_lt50", head: centers}'
    with pytest.raises(TrainingError, match=r"centers of .* of other classes than the data.*ant, cat, dog"):
        build_objective(recipe(start), data)
    ten = ImageDataset(data._store, [0, 1, 2, 2], [f"digit {c}" for c in range(3)])
    with pytest.raises(TrainingError, match="of other classes than the data"):
        build_objective(recipe(start), ten)
