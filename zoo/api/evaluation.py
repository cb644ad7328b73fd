"""`zoo.evaluate`: any encoder on any data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timm.data import resolve_model_data_config
from torch import nn

from zoo import catalog
from zoo import release as releases
from zoo.config import Config, parse
from zoo.data import DataConfig, EvalView, ImageDataset, open_dataset, parse_data_spec
from zoo.errors import DataError, ZooError, did_you_mean
from zoo.evaluation.measure import Encoded, measure
from zoo.release import Preprocess, Release
from zoo.training import pick_device
from zoo.training.progress import show_status
from zoo.training.recipe import ClassifierProtocol, KNNProtocol, LinearProtocol

PROTOCOLS: dict[str, type[Config]] = {
    "linear": LinearProtocol,
    "knn": KNNProtocol,
    "classifier": ClassifierProtocol,
}


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
