"""`zoo.evaluate`: any encoder on any data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from zoo import backbones
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.any_data import Data, Given, as_data, resolve, whole
from zoo.data.config import Folder
from zoo.data.dataset import Split
from zoo.data.image_ids import OtherImages
from zoo.data.memory import Root
from zoo.data.sources import has_training_split
from zoo.errors import DataError, ZooError, ZooWarning, did_you_mean, few
from zoo.evaluation.encode import A_MODEL, check_number, open_encoder
from zoo.evaluation.measure import OwnClassifier, check_centers, measure
from zoo.evaluation.models import check_classifier, check_encoder
from zoo.evaluation.predict import prior_in_loss
from zoo.evaluation.probe_data import Encoded
from zoo.evaluation.published import ProbeRun
from zoo.files import RUNS
from zoo.recipe.protocols import PROTOCOLS, TRAINED, ClassifierProtocol, Protocol, RetrievalProtocol
from zoo.release import Preprocess, Release
from zoo.training import pick_device


def evaluate(
    release_or_model: Release | nn.Module | str | Path,
    protocol: str,
    data: Data = None,
    *,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    device: str = "auto",
    workers: int | None = None,
    save: bool = True,
    out: str | Path | None = None,
    resume: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Measure an encoder.

    Args:
        release_or_model: a release, its name or folder; `timm:ARCH.TAG` for timm's own weights without their
            classifier; or a headless model, timm's or any other, images `[B, 3, S, S]` to features `[B, D]`,
            for "classifier" one that ends in a classifier, `[B, C]` scores of the data's classes in their
            order. What `torch.compile` or `DataParallel` made of one will do.
        protocol: on features that are computed once, "linear", "knn" or "classifier" (the learned centers),
            for monitoring and ablation, "few_shot" or "retrieval"; trained on augmented images, for figures
            that are compared with papers, "linear_full", the published linear evaluation, and
            "semi_supervised", fine-tuning on few labels.
        data: the release's own when None; else any, see `zoo.data.any_data.Data`. Of other data in one part
            "classifier", and "retrieval" among the test images, measure all images; protocols that train
            hold a fifth out. "classifier" does without some of the release's classes, told by their names.
        preprocess: of a model alone, how its images are made: a `zoo.release.Preprocess`, or a mapping with
            its fields. When None, as the model's `pretrained_cfg` says, at the size that it was built for; a
            model without one gets ImageNet's, with a warning.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode images; those of the release's recipe when None.
        save: record the entry in the release's metrics.json and card, if it is a folder of yours;
            a shipped or downloaded release stays as it is.
        out: folder for the state of linear_full's or semi_supervised's training. When None, one that is named
            by all that decides the result, in `run` of a release's folder of yours, else in `runs/NAME`.
        resume: go on with that training from its last checkpoint, or begin if there is none.
        **settings: of the protocol, e.g. `k=200`. On a release's own data those that are not given are the
            recorded ones, so that the recorded figure is repeated; else the protocol's defaults.

    Returns:
        The entry of metrics.json: protocol, data, split, metrics (percentages), of these the one that tables
        show first as `metric`, its name, and `value`; settings, seed (None where nothing is drawn), date; for
        a model also the `preprocess` that was used. Test labels enter metrics and value, and nothing else.

    Raises:
        Interrupted: when a training is stopped by SIGINT or SIGTERM, after saving its state.
        ZooError: for an unknown protocol or setting, missing data, a release without centers, a model that
            ends in a classifier, or for "classifier" one that does not.
    """
    chosen = parse_protocol(protocol, settings)
    if protocol not in TRAINED and (out is not None or resume):
        raise ZooError(
            f'{"resume" if resume else "out"}: protocol "{protocol}" trains nothing that could be kept; '
            f"{' and '.join(TRAINED)} do"
        )
    check_number("workers", workers or 0, 0)
    place = pick_device(device, "device")
    outputs: int | None = None

    def ends_in_classifier(model: nn.Module, size: int) -> None:
        nonlocal outputs
        outputs = check_classifier(model, size)

    check = ends_in_classifier if protocol == "classifier" else check_encoder
    encoder = open_encoder(release_or_model, preprocess, check=check)
    release, name = encoder.release, encoder.name
    centers = OwnClassifier() if release is None else release.centers
    config, root, is_own = resolve_data(data, release)
    if release is not None and is_own:
        chosen = parse_protocol(protocol, {**_recorded(release, protocol), **settings})
    check_centers(chosen, centers)
    if release is not None and isinstance(chosen, ClassifierProtocol) and chosen.tau is not None:
        _warn_of_prior(release)
    if not is_own and not _reads_training(chosen):
        config = whole(config)
    open_split = partial(open_own, release) if release is not None and is_own else open_dataset
    test_set = open_split(config, "test", root)
    by_centers = release if protocol == "classifier" else None
    if by_centers is not None:
        test_set = _with_classes_of(by_centers, test_set)
    if outputs not in (None, test_set.num_classes):
        raise ZooError(
            f'protocol "classifier": found a model with {outputs} outputs, expected {test_set.num_classes}, '
            'the scores of the data\'s classes; an encoder without a classifier is for "linear" or "knn"'
        )
    train_set = None
    # of a model nobody knows what it was trained on: the data's training images say nothing of its classes
    if _reads_training(chosen) or (outputs is None and has_training_split(config, root)):
        train_set = open_split(config, "train", root)
        train_set = train_set if by_centers is None else _with_classes_of(by_centers, train_set)
    encoded = Encoded(
        encoder.model,
        train_set,
        test_set,
        view=encoder.view,
        mean=encoder.preprocess.mean,
        std=encoder.preprocess.std,
        device=place,
        workers=encoder.workers if workers is None else workers,
    )
    writable = release is not None and release.writable
    folder = RUNS / ("model" if name == A_MODEL else name.replace(":", "_"))
    if release is not None and writable:
        folder = release.path / "run"
    run = ProbeRun(
        name=name,
        arch=backbones.name_of(encoder.model) if release is None else str(release.config["architecture"]),
        data=config,
        folder=folder if out is None else Path(out),
        exact=out is not None,
        resume=resume,
    )
    entry = measure(chosen, encoded, centers, run, learned_elsewhere=not is_own)
    if release is None:  # whose own config.json would say it
        entry["preprocess"] = asdict(encoder.preprocess)
    elif save and writable:
        release.add_evaluation(entry)
    return entry


def parse_protocol(name: str, settings: Mapping[str, Any]) -> Any:
    """Return a protocol with some settings and defaults for the rest.

    Raises:
        ZooError: for an unknown protocol or setting, with the nearest.
    """
    if name not in PROTOCOLS:
        hint = did_you_mean(name, PROTOCOLS)
        raise ZooError(f'protocol: found "{name}", expected one of {", ".join(PROTOCOLS)}.{hint}')
    if "protocol" in settings:
        raise ZooError(f'protocol {name}: unknown key "protocol"; it is {name}')
    return parse(PROTOCOLS[name], {**settings, "protocol": name}, f"protocol {name}")


def _recorded(release: Release, protocol: str) -> dict[str, Any]:
    """Return the settings that a release records for a protocol: its recipe's, else its first entry's."""
    asked = release.recipe.get("evaluation")
    for each in asked if isinstance(asked, list) else []:
        if isinstance(each, Mapping) and each.get("protocol") == protocol:
            return {key: value for key, value in each.items() if key != "protocol"}
    for entry in release.metrics["evaluations"]:
        if entry["protocol"] == protocol:
            seed = {} if entry.get("seed") is None else {"seed": entry["seed"]}
            return {**(entry.get("settings") or {}), **seed}
    return {}


def _warn_of_prior(release: Release) -> None:
    """Say so when the prior that `tau` takes off has been taken off in training already."""
    if prior_in_loss(release.recipe):
        warnings.warn(
            f"classifier, tau: {release.name} was trained with the log prior in its loss, so its centers are "
            "without it as they are; tau takes it off again. It is for centers of plain cross-entropy",
            ZooWarning,
            stacklevel=3,
        )


def _reads_training(protocol: Protocol) -> bool:
    """Whether a protocol learns from training images, or looks among them."""
    if isinstance(protocol, RetrievalProtocol):
        return protocol.gallery == "train"
    return not isinstance(protocol, ClassifierProtocol)


def _with_classes_of(release: Release, dataset: ImageDataset) -> ImageDataset:
    """Return data with the classes of the centers, which classify into no others, told by their names.

    Somebody's own labelled images may lack some of them; of the test images that is said.
    """
    ours, theirs = dataset.class_names, release.class_names
    if release.is_plain and len(ours) == len(theirs) and not {*ours} & {*theirs}:
        warnings.warn(
            f"classifier: the {len(ours)} classes of {release.name} have other names than the data's and are "
            f'taken in their order, "{theirs[0]}" for "{ours[0]}"',
            ZooWarning,
            stacklevel=3,
        )
        return dataset.renamed(theirs)
    unknown = next((name for name in ours if name not in set(theirs)), None)
    ambiguous = len({*theirs}) < len(theirs) or len({*ours}) < len(ours)
    if ours != theirs and (unknown is not None or ambiguous):
        raise DataError(
            f"data: found {len(ours)} classes ({few(ours)}), expected the {len(theirs)} of {release.name}'s "
            f"centers ({few(theirs)}) or some of them"
            + (f', of which "{unknown}" is none' if unknown is not None else "")
            + ('; "zoo convert --labels" names them' if "converted" in release.recipe else "")
        )
    if dataset.settings.get("split") == "test" and len(ours) < len(theirs):
        warnings.warn(
            f"classifier: the test images are of {len(ours)} of {release.name}'s {len(theirs)} classes; what "
            "is measured is over these",
            ZooWarning,
            stacklevel=3,
        )
    return dataset.with_classes(theirs)


def open_own(release: Release, config: DataConfig, split: Split, root: Root) -> ImageDataset:
    """Open a split of the data that a release names: where it lists its images these, in their order.

    Raises:
        DataError: see `open_dataset`; where the images are listed also for a copy that lacks some of them, or
            whose classes have other names.
    """
    images = release.images
    if not images:
        return open_dataset(config, split, root)
    word = "trained" if split == "train" else "measured"
    try:
        found = open_dataset(config, split, root, images.get(split))
    except OtherImages as error:
        raise DataError(
            f"{release.name} was {word} on other images: {error}. Data that are not its own are given as a "
            "spec, e.g. --data cifar100:DIR"
        ) from None
    if found.class_names != release.class_names:
        raise DataError(
            f"{release.name} was {word} on these images with the classes {few(release.class_names)}, found "
            f"{few(found.class_names)}"
        )
    return found


def resolve_data(data: Data, release: Release | None) -> Given:
    """Return the data that a release names, with the true labels, which probes read, or other data.

    Raises:
        DataError: see `resolve`; where a converted release, which names none, is given none.
    """
    if release is None:
        return resolve(data, None)
    given = own_data(release.recipe, release.name, data)
    if given.is_own and data is not None and isinstance(given.config.source, Folder) and given.config.holdout:
        # a folder of photos has the layout of any other: its names tell whether these were trained on
        found = open_dataset(given.config, "train", given.root).describe()["sha256"]
        if found != release.config["zoo"]["dataset"].get("sha256"):
            return as_data(data)
    return given


def own_data(recipe: Mapping[str, Any], name: str, data: Data) -> Given:
    """Do what `resolve_data` does for a recipe as plain values; `name` is of the weights, for the error."""
    section = recipe.get("data")
    if data is None and section is None:
        raise DataError(
            f"data: {name} was converted and names no data of its own; give some, e.g. --data folder:DIR"
        )
    try:
        own = None if section is None else parse(DataConfig, section, f"{name}: recipe.yaml: data")
    except ZooError:  # of data that this version does not know
        if data is None:
            raise
        own = None
    given = resolve(data, own)
    return given._replace(config=given.config.model_copy(update={"partial_labels": None}))
