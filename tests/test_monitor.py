"""Evaluation while training: what is held out, when training ends, what is released, exact resume."""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.test_training import assert_same_state, recipe, stop_after
from zoo.data import ImageDataset, eval_images, open_dataset
from zoo.data.dataset import ImageStore
from zoo.errors import DataError, Interrupted
from zoo.evaluation.encode import extract
from zoo.evaluation.metrics import classification_metrics
from zoo.recipe import Recipe
from zoo.training import RunFolder, Trained, build_objective, train
from zoo.training.monitor import IMAGES, split_neighbors, split_validation

CPU = torch.device("cpu")
# a constant rate on 240 images: the validation loss turns up after a few epochs
OVERFIT = (
    "training.epochs=20",
    "schedule.name=constant",
    "schedule.warmup_epochs=0",
    "objective.loss=cross_entropy",
    "optimizer.lr=0.02",
    "optimizer.weight_decay=0.0",
    "training.threads=1",
)
EVERY = "training.knn_every=1"


def stopping(metric: str = "loss", *, patience: int = 2, fraction: float = 0.3) -> str:
    return (
        f"training.early_stopping={{validation_fraction: {fraction}, metric: {metric}, every: 1, "
        f"patience: {patience}}}"
    )


def go(r: Recipe, folder: Path, dataset: ImageDataset | None = None, *, resume: bool = False) -> Trained:
    dataset = dataset or open_dataset(r.data, "train", None)
    return train(build_objective(r, dataset), dataset, r, RunFolder(folder), resume=resume)


def looks(folder: Path, name: str = "validation_loss") -> list[dict[str, float]]:
    return [row for row in RunFolder(folder).rows() if name in row]


def made(labels: list[int], classes: int) -> ImageDataset:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    store = ImageStore(pixels, [f"image {row}" for row in range(len(labels))])
    return ImageDataset(store, np.array(labels), [f"class {c}" for c in range(classes)])


def names_of(dataset: ImageDataset) -> list[str]:
    return [dataset.name_of(i) for i in range(len(dataset))]


def test_each_class_gives_its_share_but_never_its_only_image() -> None:
    dataset = made([0] * 40 + [1] * 10 + [2] * 2 + [3], 4)
    r = recipe("classify", stopping(fraction=0.2))
    training, held = split_validation(dataset, r)
    assert held.class_counts.tolist() == [8, 2, 1, 0]
    assert training.class_counts.tolist() == [32, 8, 1, 1]
    assert sorted(names_of(training) + names_of(held)) == sorted(names_of(dataset))
    _, again = split_validation(dataset, r)
    _, other = split_validation(dataset, recipe("classify", stopping(fraction=0.2), "training.seed=1"))
    assert names_of(again) == names_of(held) != names_of(other)
    with pytest.raises(DataError, match=r"each class has a single training image"):
        split_validation(made([0, 1, 2], 3), r)
    twice = ImageStore([f"{row % 30}.png" for row in range(60)], [str(row) for row in range(60)])
    parts = split_validation(ImageDataset(twice, np.arange(60) % 2, "ab"), r)
    items = [{each.store.items[row] for row in each.rows} for each in parts if each is not None]
    assert items[0] and items[1] and not items[0] & items[1]


def test_half_of_each_class_votes_on_the_other_half_and_its_only_image_votes() -> None:
    r = recipe("moco", EVERY)
    found = split_neighbors(made([0] * 40 + [1] * 10 + [2] * 3 + [3] + [-1] * 30, 4), r)
    voters, queries = found
    assert voters.class_counts.tolist() == [20, 5, 1, 1]
    assert queries.class_counts.tolist() == [20, 5, 2, 0]
    assert not {*names_of(voters)} & {*names_of(queries)}
    many = split_neighbors(made([i % 7 for i in range(IMAGES + 5000)], 7), r)
    assert sum(map(len, many)) == IMAGES
    for labels in ([-1] * 9, [0, 1, 2]):
        with pytest.raises(DataError, match=r"^training\.knn_every: found no two .*of one class"):
            split_neighbors(made(labels, 3), r)


def test_held_out_images_are_in_no_batch_no_count_and_are_all_that_is_looked_at(tmp_path: Path) -> None:
    """They are white, the others black."""
    r = recipe("classify", stopping(patience=9), "views.train=[[{op: horizontal_flip}]]")
    real = open_dataset(r.data, "train", None)
    _, held = split_validation(real, r)
    pixels = np.zeros((len(real), 8, 8), np.uint8)
    pixels[np.isin(names_of(real), names_of(held))] = 255
    planted = ImageDataset(ImageStore(pixels, real.store.names), real.labels, real.class_names)
    seen: dict[bool, list[Tensor]] = {True: [], False: []}

    class Spy(nn.Sequential):
        num_features = 64

        def forward(self, images: Tensor) -> Tensor:
            seen[self.training].append(images.amax(dim=(1, 2, 3)))
            return super().forward(images)

    objective = build_objective(r, planted)
    objective.encoder = Spy(objective.encoder)
    train(objective, planted, r, RunFolder(tmp_path), resume=False)
    trained_on, looked_at = torch.cat(seen[True]), torch.cat(seen[False])
    assert (len(trained_on), len(looked_at)) == (2 * (len(real) - len(held)), 2 * len(held))
    assert trained_on.max() < 0 < looked_at.min()
    paco = recipe("paco", stopping("accuracy"))
    built = build_objective(paco, real)
    counts = torch.tensor(split_validation(real, paco)[0].class_counts)
    torch.testing.assert_close(built.log_prior.exp(), counts / counts.sum(), rtol=1e-4, atol=1e-6)


def test_it_stops_when_it_gets_worse_and_ends_with_the_best_state(tmp_path: Path) -> None:
    r = recipe("classify", *OVERFIT, stopping())
    trained = go(r, tmp_path / "a")
    losses = [row["validation_loss"] for row in looks(tmp_path / "a")]
    best, facts = int(np.argmin(losses)) + 1, trained.stopping
    assert best < len(losses) == best + 2 == facts["stopped_at_epoch"] < 20
    assert facts["best_epoch"] == best and facts["best_value"] == pytest.approx(min(losses), abs=1e-4)
    training, _ = split_validation(open_dataset(r.data, "train", None), r)
    assert trained.images == len(training) * facts["stopped_at_epoch"]
    # the same training of the rest alone, which knows of no validation and ends there
    plain = go(recipe("classify", *OVERFIT, f"training.epochs={best}"), tmp_path / "b", training)
    assert_same_state(plain.objective, trained.objective)


def test_the_value_is_that_of_the_released_average_also_of_a_run_stopped_anywhere(tmp_path: Path) -> None:
    ema = "training.ema={decay: 0.9, warmup: true}"
    r = recipe("classify", *OVERFIT, stopping("accuracy", patience=3), ema)
    trained = go(r, tmp_path / "a")
    values = [row["validation_accuracy"] for row in looks(tmp_path / "a")]
    assert trained.stopping["best_epoch"] == values.index(max(values)) + 1
    _, held = split_validation(open_dataset(r.data, "train", None), r)
    images = eval_images(held, r.views.eval, r.data.mean, r.data.std, batch_size=7, device=CPU)
    features, labels = extract(trained.objective.encoder, images, device=CPU)
    logits = trained.objective.centers().logits(features)
    found = classification_metrics(logits.argmax(dim=1), labels, None, held.class_names)
    row = looks(tmp_path / "a")[values.index(max(values))]
    for name in ("accuracy", "balanced_accuracy"):
        assert row[f"validation_{name}"] == pytest.approx(found[name])
    expected = nn.functional.cross_entropy(logits, labels).item()
    assert row["validation_loss"] == pytest.approx(expected, rel=1e-4)

    stop_after(tmp_path / "b", 13, signal.SIGTERM)
    with pytest.raises(Interrupted):
        go(r, tmp_path / "b")
    for _ in range(2):  # the second finds a finished training
        resumed = go(r, tmp_path / "b", resume=True)
        assert_same_state(trained.objective, resumed.objective)
        assert resumed.stopping == trained.stopping
        values = [
            [(row["step"], row.get("loss"), row.get("validation_loss")) for row in RunFolder(folder).rows()]
            for folder in (tmp_path / "a", tmp_path / "b")
        ]
        assert values[0] == values[1]


def test_it_looks_every_so_many_epochs_and_at_the_end_and_changes_nothing(tmp_path: Path) -> None:
    plain = go(recipe("moco", "training.epochs=3"), tmp_path / "plain").objective
    looked = go(recipe("moco", "training.epochs=3", "training.knn_every=2"), tmp_path / "looked").objective
    assert_same_state(plain, looked)
    assert all(module.training for module in looked.encoder.modules())
    assert [row["epoch"] for row in looks(tmp_path / "looked", "knn_accuracy")] == [2, 3]
