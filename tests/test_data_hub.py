"""Data sets on the Hub, over real HTTP from the test Hub of hub_server.py."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import zoo
from zoo.data import open_dataset
from zoo.data.any_data import as_data
from zoo.errors import DataError
from zoo.release.card import hub_dataset

from .test_data_sources import shard as write_shard

NAME = "alice/photos"
REPO = f"datasets/{NAME}"


def shard(labels):
    """A parquet file as the Hub's `datasets` writes it."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "x.parquet")
        write_shard(file, labels, names=("ant", "bee"), image="image")
        return file.read_bytes()


FILES = {
    "README.md": b"# photos",
    "data/train-00000-of-00002.parquet": shard([0, 1]),
    "data/train-00001-of-00002.parquet": shard([1]),
    "data/test-00000-of-00001.parquet": shard([1]),
}


def opened(split="train", place=NAME):
    config, root, _ = as_data(f"hub:{place}")
    return open_dataset(config, split, root)


def test_fetches_parquet_files_and_records_repository_and_commit(hub):
    commit = hub.create(REPO, FILES)
    train = opened()
    assert (train.labels.tolist(), train.class_names) == ([0, 1, 1], ("ant", "bee"))
    assert train.image(0).size == (6, 6)
    assert not any("README" in path for _, path in hub.requests)
    assert opened("test").labels.tolist() == [1]
    facts = train.describe()
    assert facts["hub_commit"] == commit and facts["name"].startswith(NAME)
    assert hub_dataset(facts) == NAME


def test_without_an_answer_the_cache_is_taken(hub, monkeypatch):
    from huggingface_hub import constants

    commit = hub.create(REPO, FILES)
    opened()
    hub.fault("GET /api/datasets", status=500, times=99)
    assert len(opened()) == 3
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(hub.requests)
    assert len(opened(place=f"{NAME}@{commit}")) == 3 and len(hub.requests) == before


@pytest.mark.usefixtures("no_pictures")
def test_a_recipe_is_trained_on_it_and_its_card_names_repository_and_commit(hub, tmp_path):
    commit = hub.create(REPO, FILES)
    changes = ["data.image_size=8", "training.epochs=1", "data.long_tail=null"]
    changes += ["training.batch_size=3", "schedule.warmup_epochs=0", "evaluation=[]", "training.device=cpu"]
    recipe = "cifar_resnet20.simclr_digits_lt50"
    release = zoo.pretrain(recipe, data=f"hub:{NAME}", out=tmp_path / "out", overrides=changes)
    assert f"datasets:\n- {NAME}\n" in release.card
    assert commit in str(release.config["zoo"]["dataset"])


@pytest.mark.parametrize("place", ["train.parquet", "train-0.parquet", "train/0000.parquet"])
@pytest.mark.parametrize("folder", ["", "/coarse"])
def test_the_hubs_layouts_are_read(hub, folder, place):
    hub.create(REPO, {f"{folder}/{place}".strip("/"): shard([0, 1, 1])})
    assert opened(place=NAME + folder).class_names == ("ant", "bee")


def test_mistakes_are_one_line(hub):
    for place, message in ((NAME, f"{NAME}.*does not exist"), (f"{NAME}@v9", "no such revision")):
        with pytest.raises(DataError, match=message) as caught:
            opened(place=place)
        assert "\n" not in str(caught.value)
        hub.create(REPO, {"README.md": b""})
