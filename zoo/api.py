"""What the package's users call: pretrain, finetune, evaluate. Joins the rooms; holds no logic of its own."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_model_data_config
from torch import nn

from zoo import catalog
from zoo import release as releases
from zoo.config import Config, parse
from zoo.data import DataConfig, EvalView, ImageDataset, open_dataset, parse_data_spec
from zoo.errors import DataError, RecipeError, TrainingError, ZooError, did_you_mean
from zoo.evaluation.feature_map import plot_features
from zoo.evaluation.measure import Encoded, measure
from zoo.evaluation.plots import plot_curves
from zoo.release import Preprocess, Release, write_release
from zoo.training import Recipe, RunFolder, Trained, build_objective, cpu_threads, pick_device, train
from zoo.training.progress import show_status
from zoo.training.recipe import ClassifierProtocol, KNNProtocol, LinearProtocol

PROTOCOLS: dict[str, type[Config]] = {
    "linear": LinearProtocol,
    "knn": KNNProtocol,
    "classifier": ClassifierProtocol,
}


def pretrain(
    recipe: Recipe | str | Path,
    *,
    out: str | Path,
    data: str | Path | None = None,
    resume: bool = False,
    overrides: Sequence[str] = (),
) -> Release:
    """Train as a recipe says, measure the result and write its release.

    Args:
        recipe: a shipped recipe's name, a file, or a `Recipe`.
        out: the release folder to make; the run's own state lies in its sub-folder `run`.
        data: the folder with the data, for sources that need one.
        resume: go on from the last checkpoint in `out`, or begin if there is none.
        overrides: `a.b=c` changes, recorded in the released recipe.

    Returns:
        The release in `out`.

    Raises:
        Interrupted: on SIGINT or SIGTERM, after saving the state.
        ZooError: for anything wrong with recipe, data or folder.
    """
    recipe = _recipe(recipe, overrides)
    out = Path(out)
    run = RunFolder(out / "run")
    if (out / "config.json").is_file():
        finished = releases.open(out)
        if resume and finished.config["zoo"]["recipe_sha256"] == recipe.sha256:
            return finished
        raise TrainingError(f'"{out}" holds a finished release of "{finished.name}"; choose another --out')
    train_set = open_dataset(recipe.data, "train", data)
    test_set = open_dataset(recipe.data, "test", data)
    if recipe.evaluation and train_set.num_classes < 2:
        raise DataError(
            f"evaluation: the data have {train_set.num_classes} class, expected at least 2; "
            'set "evaluation: []"'
        )
    with cpu_threads(recipe.training.threads):
        trained = train(build_objective(recipe, train_set), train_set, recipe, run, resume=resume)
        return _release(recipe, trained, train_set, test_set, run, out)


def _release(
    recipe: Recipe,
    trained: Trained,
    train_set: ImageDataset,
    test_set: ImageDataset,
    run: RunFolder,
    out: Path,
) -> Release:
    """Measure what was trained, draw it, and write its release."""
    encoder, centers = trained.objective.encoder, trained.objective.centers()
    encoded = Encoded(
        encoder,
        train_set,
        test_set,
        view=recipe.views.eval,
        mean=recipe.data.mean,
        std=recipe.data.std,
        device=pick_device(recipe.training.device),
        workers=recipe.views.workers,
        max_bad_images=recipe.data.max_bad_images,
    )
    entries = []
    try:
        for protocol in recipe.evaluation:
            with show_status(f"measuring: {protocol.protocol}, {len(test_set):,} test images"):
                entries.append(measure(protocol, encoded, centers))
    except DataError as error:
        raise DataError(
            f'{error}. The training is done and saved in "{run.path}"; mend the data and give the same '
            "command with --resume"
        ) from None
    pictures = {"curves": run.path / "curves.png", "features": run.path / "features.png"}
    with show_status("drawing: curves and a map of the test features"):
        plot_curves(run.rows(), pictures["curves"], title=recipe.name)
        plot_features(
            *encoded.test,
            test_set.class_names,
            centers,
            pictures["features"],
            seed=recipe.training.seed,
            title=f"{recipe.name}: test features",
        )
    eval_view = recipe.views.eval
    return write_release(
        out,
        name=recipe.name,
        encoder=encoder,
        arch=recipe.backbone.arch,
        model_args=recipe.backbone.args,
        preprocess=Preprocess(
            eval_view.size,
            eval_view.crop_pct,
            eval_view.interpolation,
            tuple(recipe.data.mean),
            tuple(recipe.data.std),
        ),
        class_names=train_set.class_names,
        centers=centers,
        objective=recipe.objective.name,
        dataset=train_set.describe(),
        recipe_text=recipe.to_yaml(),
        metrics={
            "format": 1,
            "training": _training_facts(recipe, trained, train_set),
            "evaluations": entries,
        },
        pictures=pictures,
        description=recipe.description,
    )


def finetune(
    recipe: Recipe | str | Path,
    *,
    init: str | Path,
    out: str | Path,
    head: str | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    overrides: Sequence[str] = (),
) -> Release:
    """Train from a release instead of random weights; otherwise `pretrain`.

    Args:
        recipe: usually of the objective `classify`.
        init: the release to start from: a weights name, `org/repo[@rev]` or a folder.
        out: see `pretrain`.
        head: "fresh" or "centers" (made of the release's learned centers); the recipe's own when None.
        data: see `pretrain`.
        resume: see `pretrain`.
        overrides: see `pretrain`.
    """
    recipe = _recipe(recipe, overrides)
    plain = recipe.model_dump(mode="json")
    own = plain["init"] or {}
    plain["init"] = own | {"release": str(init), "head": head or own.get("head", "fresh")}
    return pretrain(parse(Recipe, plain, recipe.name), out=out, data=data, resume=resume)


def _recipe(recipe: Recipe | str | Path, overrides: Sequence[str]) -> Recipe:
    if isinstance(overrides, str):
        raise RecipeError(f'overrides: found the text "{overrides}", expected a list of "KEY.KEY=VALUE"')
    if isinstance(recipe, Recipe):
        return Recipe.from_yaml(recipe.to_yaml(), recipe.name, overrides) if overrides else recipe
    return Recipe.load(recipe, overrides)


def evaluate(
    release_or_model: Release | nn.Module | str | Path,
    protocol: str,
    data: str | Path | None = None,
    *,
    device: str = "auto",
    save: bool = True,
    **settings: Any,
) -> dict[str, Any]:
    """Measure an encoder.

    Args:
        release_or_model: a release, its name or folder, or a headless timm model (features `[B, D]`).
        protocol: "linear", "knn" or "classifier" (the learned centers).
        data: a folder that holds the release's own data source, or a spec such as "digits" or
            "parquet:DIR?label=fine_label"; the release's own source when None.
        device: "auto", "cpu" or "cuda".
        save: record the entry in the release's metrics.json and card, if it is a folder of yours;
            a shipped or downloaded release stays as it is.
        **settings: of the protocol, e.g. `k=200`.

    Returns:
        The entry of metrics.json: protocol, data, split, metrics (percentages), settings, seed, date.

    Raises:
        ZooError: for an unknown protocol or setting, missing data, or a release without centers.
    """
    if protocol not in PROTOCOLS:
        hint = did_you_mean(protocol, PROTOCOLS)
        raise ZooError(f'protocol: found "{protocol}", expected one of {", ".join(PROTOCOLS)}.{hint}')
    chosen: Any = parse(PROTOCOLS[protocol], {"protocol": protocol, **settings}, f"protocol {protocol}")
    release: Release | None = None
    centers = None
    if isinstance(release_or_model, nn.Module):
        model, preprocess = release_or_model, _preprocess_of(release_or_model)
        if getattr(model, "num_classes", 0):
            raise ZooError(
                f"model: found a classifier with {model.num_classes} outputs, expected an encoder: build it "
                "with num_classes=0, or call reset_classifier(0)"
            )
    else:
        release = (
            release_or_model if isinstance(release_or_model, Release) else releases.open(release_or_model)
        )
        model, preprocess, centers = release.load(), release.preprocess, release.centers
    config, root = _resolve_data(data, release)
    test_set = open_dataset(config, "test", root)
    if protocol == "classifier" and release is not None and centers is not None:
        _check_classes(release, test_set)
    encoded = Encoded(
        model,
        open_dataset(config, "train", root),
        test_set,
        view=EvalView(
            size=preprocess.input_size,
            crop_pct=preprocess.crop_pct,
            interpolation=preprocess.interpolation,  # type: ignore[arg-type]
        ),
        mean=preprocess.mean,
        std=preprocess.std,
        device=pick_device(device),
    )
    with show_status(f"measuring: {protocol}, {len(test_set):,} test images"):
        entry = measure(chosen, encoded, centers)
    if release is not None and save and release.writable and not catalog.is_shipped(release.path):
        release.add_evaluation(entry)
    return entry


def _check_classes(release: Release, dataset: ImageDataset) -> None:
    """Centers classify into their own classes and no others, however many the data have."""
    if release.class_names != dataset.class_names:
        found, expected = (", ".join(names[:5]) for names in (dataset.class_names, release.class_names))
        raise DataError(
            f"data: found {len(dataset.class_names)} classes ({found}, ...), expected the "
            f"{len(release.class_names)} of {release.name}'s centers ({expected}, ...)"
        )


def _resolve_data(data: str | Path | None, release: Release | None) -> tuple[DataConfig, str | Path | None]:
    """Tell a folder for the release's own source from a spec that names another source."""
    if data is None or Path(data).is_dir():
        if release is None:
            raise DataError("data: a model without a release needs a data spec, e.g. cifar100:DIR")
        config = parse(DataConfig, release.recipe["data"], f"{release.name}: recipe.yaml: data")
        return config.model_copy(update={"partial_labels": None}), data  # probes read true labels
    return parse_data_spec(str(data))


def _preprocess_of(model: nn.Module) -> Preprocess:
    config: Mapping[str, Any] = resolve_model_data_config(model)
    return Preprocess(
        config["input_size"][-1],
        config["crop_pct"],
        config["interpolation"],
        tuple(config["mean"]),
        tuple(config["std"]),
    )


def _training_facts(recipe: Recipe, trained: Trained, train_set: ImageDataset) -> dict[str, Any]:
    """What metrics.json and the card say about how the weights came to be."""
    labels = torch.tensor(train_set.labels, device=next(trained.objective.parameters()).device)
    return {
        "steps": trained.steps,
        "epochs": recipe.training.epochs,
        "images": trained.images,
        "seconds": round(trained.seconds, 1),
        "images_per_second": round(trained.images / max(trained.seconds, 1e-9), 1),
        "unreadable_images": len(trained.bad_images),
        **trained.objective.facts(labels),
        "hardware": hardware(pick_device(recipe.training.device)),
        "precision": recipe.training.precision,
        "seed": recipe.training.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: version(name) for name in ("torch", "timm", "torchvision")},
    }


def hardware(device: torch.device) -> str:
    """Name the machine's relevant part: the GPU, or the processor and how many cores torch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cores = min(torch.get_num_threads(), os.cpu_count() or 1)
    return f"{cores} CPU core{'s' if cores > 1 else ''} ({_processor()})"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
