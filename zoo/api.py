"""What users call: pretrain, finetune, evaluate, convert. Joins the rooms, no logic of its own."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

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
from zoo.release.convert import Encoder, Preprocessing, convert_checkpoint
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


def convert(
    file: str | Path,
    family: str,
    out: str | Path | None = None,
    *,
    arch: str,
    name: str | None = None,
    encoder: Encoder = "query",
    model_args: Mapping[str, Any] | None = None,
    labels: Sequence[str] | str | Path | None = None,
    class_counts: Sequence[int] | str | Path | None = None,
    size: int | None = None,
    crop_pct: float | None = None,
    interpolation: Literal["bilinear", "bicubic"] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dataset: str = "not recorded",
    license: str | None = None,
    description: str | None = None,
    leave_out: Sequence[str] = (),
) -> Release:
    """Make a release of a checkpoint that another project's code has written.

    Nothing in the file is executed. Every key is understood or the conversion fails: what is not released,
    such as heads, queues and the other encoder, is listed in recipe.yaml under `converted.left_out`.

    Args:
        file: a checkpoint of torch.save, or .safetensors.
        family: whose layout it has: "moco" (v1, v2), "moco-v3", "paco", "gpaco", "ft" (and PyContrast),
            "pico", "lightly" or "solo-learn".
        out: the release folder to make; `runs/NAME` when None.
        arch: the encoder's architecture in timm, e.g. "resnet50", "cifar_resnet32", "vit_small_patch16_224".
        name: of the weights, `arch.tag`; made of arch, family and the file's name when None.
        encoder: "query" for the trained encoder, "momentum" for its moving average (key encoder, teacher).
        model_args: arguments of the architecture, e.g. `{"img_size": 32, "patch_size": 4}`. What the family
            implies, e.g. the 12 heads of MoCo v3's ViT-S, is known.
        labels: names of the centers' classes: themselves, a text file with one a line, or a data spec whose
            classes they are; "0", "1", ... when None.
        class_counts: training images of each class: themselves, a text file with one a line, or a data spec
            whose training split is counted; -1, unknown, when None.
        size: pixels of the input, where they are not the authors'; so too:
        crop_pct: part of the resized image that the central crop keeps.
        interpolation: "bilinear" or "bicubic".
        mean: of each channel, for pixels in [0, 1].
        std: of each channel.
        dataset: what the encoder was trained on, in words.
        license: of the weights, as the Hub writes it; that of the authors' repository when None.
        description: the card's paragraph; written from the facts when None.
        leave_out: keys of the file, or prefixes such as "decoder.*", to leave out although they are unknown.

    Raises:
        ReleaseError: when the file cannot be read without running its code; for keys that are not understood,
            missing or of another shape, listing them and the family or architecture that fits.
        ZooError: for an unknown architecture, or labels and counts that cannot be read.
    """
    return convert_checkpoint(
        file,
        family,
        out,
        arch=arch,
        name=name,
        encoder=encoder,
        model_args=model_args,
        labels=_labels(labels) if isinstance(labels, str | Path) else labels,
        class_counts=_counts(class_counts) if isinstance(class_counts, str | Path) else class_counts,
        preprocessing=Preprocessing(
            size, crop_pct, interpolation, tuple(mean) if mean else None, tuple(std) if std else None
        ),
        dataset=dataset,
        license=license,
        description=description,
        leave_out=leave_out,
    )


def _labels(source: str | Path) -> Sequence[str]:
    lines = _lines(source, "labels")
    return _train_set(source, "labels").class_names if lines is None else lines


def _counts(source: str | Path) -> list[int]:
    lines = _lines(source, "class counts")
    if lines is None:
        return [int(count) for count in _train_set(source, "class counts").class_counts]
    wrong = [line for line in lines if not line.isdecimal()]
    if wrong:
        raise DataError(f'class counts: {source}: found "{wrong[0]}", expected one whole number a line')
    return [int(line) for line in lines]


def _lines(source: str | Path, what: str) -> list[str] | None:
    """Return the lines of a text file that are not empty, or None when there is no such file."""
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: {source}: cannot be read: {error}") from None
    return None if text is None else [line.strip() for line in text.splitlines() if line.strip()]


def _train_set(spec: str | Path, what: str) -> ImageDataset:
    try:
        config, root = parse_data_spec(str(spec))
        return open_dataset(config, "train", root)
    except ZooError as error:
        raise DataError(f"{what}: no file, and no data spec: {error}") from None


def _check_classes(release: Release, dataset: ImageDataset) -> None:
    """Centers classify into their own classes and no others, however many the data have."""
    if release.class_names != dataset.class_names:
        found, expected = (", ".join(names[:5]) for names in (dataset.class_names, release.class_names))
        raise DataError(
            f"data: found {len(dataset.class_names)} classes ({found}, ...), expected the "
            f"{len(release.class_names)} of {release.name}'s centers ({expected}, ...)"
            + ('; "zoo convert --labels" names them' if "converted" in release.recipe else "")
        )


def _resolve_data(data: str | Path | None, release: Release | None) -> tuple[DataConfig, str | Path | None]:
    """Tell a folder for the release's own source from a spec that names another source."""
    if data is None or Path(data).is_dir():
        if release is None:
            raise DataError("data: a model without a release needs a data spec, e.g. cifar100:DIR")
        section = release.recipe.get("data")
        if section is None:
            raise DataError(
                f"data: {release.name} was converted and names no data of its own; give a spec with --data, "
                f"e.g. {f'folder:{data}' if data else 'cifar100:DIR'}"
            )
        config = parse(DataConfig, section, f"{release.name}: recipe.yaml: data")
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
