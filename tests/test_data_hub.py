"""Data sets on the Hub, over real HTTP from the test Hub of hub_server.py."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import zoo
from zoo.data import DataConfig, open_dataset
from zoo.data.config import HubDataset
from zoo.errors import DataError
from zoo.release.card import hub_dataset

from .test_data_sources import shard as write_shard

NAME = "alice/photos"
REPO = f"datasets/{NAME}"


def shard(labels, column="image"):
    """A parquet file as the Hub's `datasets` writes it."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "x.parquet")
        write_shard(file, labels, names=("ant", "bee"), image=column)
        return file.read_bytes()


FILES = {
    "README.md": b"# photos",
    "data/train-00000-of-00002.parquet": shard([0, 1]),
    "data/train-00001-of-00002.parquet": shard([1]),
    "data/test-00000-of-00001.parquet": shard([1]),
    "data/extra-00000-of-00001.parquet": shard([0]),
}


def opened(split="train", **keys):
    return open_dataset(DataConfig(source=HubDataset(repo=NAME, **keys)), split, None)


def refused(message, split="train", **keys):
    with pytest.raises(DataError, match=message) as caught:
        opened(split, **keys)
    assert "\n" not in str(caught.value)


@pytest.fixture
def offline(monkeypatch):
    """Become offline when called, as HF_HUB_OFFLINE=1 makes a process."""
    from huggingface_hub import constants

    return lambda: monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_fetches_what_a_split_needs_and_records_repository_and_commit(hub):
    commit = hub.create(REPO, FILES)
    train = opened()
    assert (train.labels.tolist(), train.class_names, train.image(0).size) == (
        [0, 1, 1],
        ("ant", "bee"),
        (6, 6),
    )
    asked = [path for _, path in hub.requests]
    assert not any("test-" in path or "extra-" in path or "README" in path for path in asked)
    assert opened("test").labels.tolist() == [1]
    facts = train.describe()
    assert (facts["name"], facts["hub_commit"], facts["hub_folder"]) == (NAME, commit, "data")
    assert hub_dataset(facts) == NAME


def test_offline_the_cache_is_read_and_what_it_lacks_is_said(hub, offline):
    commit = hub.create(REPO, FILES)
    opened()
    offline()
    before = len(hub.requests)
    assert len(opened()) == len(opened(revision=commit)) == 3  # and nothing is fetched again
    refused("HF_HUB_OFFLINE is set", "test")
    assert len(hub.requests) == before


def test_without_an_answer_the_cache_is_taken(hub):
    hub.create(REPO, FILES)
    opened()
    hub.fault("GET /api/datasets", status=500, times=99)
    assert len(opened()) == 3
    refused("the Hub has trouble", "test")


def test_configurations_are_told_apart(hub):
    hub.create(REPO, {f"{name}/train-0.parquet": shard([0]) for name in ("fine", "coarse")})
    refused(r"in coarse, fine, expected one: data\.source\.config")
    refused('found parquet files of "train" in coarse, fine, expected one', config="fin")
    fine = opened(config="fine")
    assert (len(fine), fine.describe()["name"], fine.describe()["hub_folder"]) == (
        1,
        "alice/photos fine",
        "fine",
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_recipe_is_trained_on_it_and_its_card_names_repository_and_commit(hub, tmp_path):
    commit = hub.create(REPO, FILES)
    changes = [f"data={{source: {{kind: hub, repo: {NAME}}}}}", "data.image_size=8", "training.epochs=1"]
    changes += ["training.batch_size=3", "schedule.warmup_epochs=0", "evaluation=[]", "training.device=cpu"]
    recipe = "cifar_resnet20.simclr_digits_lt50"
    release = zoo.pretrain(recipe, out=tmp_path / "out", overrides=changes)
    assert f"datasets:\n- {NAME}\n" in release.card
    assert commit in str(release.config["zoo"]["dataset"])
    assert release.recipe["data"]["source"]["repo"] == NAME


@pytest.mark.parametrize("place", ["train.parquet", "train-0.parquet", "plain/train/0000.parquet"])
def test_the_hubs_layouts_are_read(hub, place):
    hub.create(REPO, {place: shard([0, 1], column="img")})
    assert opened().labels.tolist() == [0, 1]


def test_mistakes_are_one_line(hub, tmp_path):
    refused(f'Hub data set "{NAME}": it does not exist')
    hub.create(REPO, {"README.md": b"", "a.csv": b""})
    refused("found parquet files of .train. in no folder.*refs/convert/parquet")
    refused('at revision "v9": there is no such revision', revision="v9")
