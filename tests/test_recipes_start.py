"""Every recipe starts as it stands: its own objective, views and optimizer take two steps on a few images."""

import math
from pathlib import Path

import pytest
import torch

from tests.data_fixtures import photo
from tests.test_step import CPU
from zoo import catalog
from zoo.data import open_dataset
from zoo.recipe import Recipe
from zoo.training.build import build_objective, open_loader
from zoo.training.stages import first_stage
from zoo.training.step import Stepper

GROUPS = [["bed", "chair"], ["bear", "lion"]]  # the classes of the few images, in two groups
PER_CLASS = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


def images(base: Path, size: int) -> Path:
    """Return a folder of images of CIFAR's size, or somewhat larger than an ImageNet crop."""
    width, height = (size, size) if size == 32 else (size + 30, size + 10)
    for c, name in enumerate([*GROUPS[0], *GROUPS[1]]):
        folder = base / str(size) / "train" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            for i in range(PER_CLASS):
                photo(width, height, 10 * c + i).save(folder / f"{i}.png")
    return base / str(size)


def shrunk(name: str) -> Recipe:
    """The recipe on a few images: only data, sizes and devices are others."""
    data = Recipe.load(name).model_dump(mode="json")
    changes = ["training.batch_size=4", "training.device=cpu", "views.workers=0"]
    changes += ["init=null"]  # timm's weights are not here
    if data["data"]["source"]["kind"] != "digits":
        changes.append("data.source={kind: folder, train: train, test: val}")
        if data["data"]["long_tail"]:
            changes.append("data.long_tail.imbalance=2.0")
    if data["data"]["partial_labels"] and data["data"]["partial_labels"]["kind"] == "grouped":
        changes.append(f"data.partial_labels.groups={GROUPS}")
    if data["training"]["ema"]:
        changes.append("training.ema.warmup=true")  # it is made for more steps
    if "queue_size" in data["objective"]:
        changes.append("objective.queue_size=16")
    if data["objective"].get("key_groups", 1) > 1:
        changes.append("objective.key_groups=2")
    return Recipe.load(name, changes)


# always: of CIFAR's sizes, those with an architecture or a way to learn that test_loss_curves.py has not
PATTERNS = ("cifar_resnet32*_cifar100_lt100", "[crv]*_cifar100", "*.pico_cifar100_coarse_q05")
ALWAYS = {name for pattern in PATTERNS for name in catalog.list_recipes(pattern)}
CASES = [
    pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.slow]) for name in catalog.list_recipes()
]


@pytest.mark.parametrize("name", CASES)
def test_recipe_starts_as_it_stands(name: str, base: Path) -> None:
    recipe = first_stage(shrunk(name))
    size = recipe.views.eval.size
    dataset = open_dataset(recipe.data, "train", images(base, size))
    objective = build_objective(recipe, dataset).to(memory_format=torch.channels_last).train()
    loader = open_loader(dataset, recipe, CPU)
    stepper = Stepper(objective, recipe, loader.steps_per_epoch, CPU)
    trained = {key: p for key, p in objective.encoder.named_parameters() if p.requires_grad}
    before = {key: p.detach().clone() for key, p in trained.items()}

    for step, batch in enumerate(loader.stream(0, 2)):
        assert len(batch.views) == objective.config.num_views
        assert {view.shape[-1] for view in batch.views} == (set(recipe.views.train_sizes) or {size})
        loss = float(stepper(step, batch).loss.detach())
        assert math.isfinite(loss), step

    changed = [key for key, p in trained.items() if not torch.equal(p, before[key])]
    assert len(changed) >= 0.5 * len(trained)  # some start at 0 and have no gradient yet
    assert all(torch.isfinite(value).all() for value in objective.state_dict().values())
