"""`zoo.evaluate`: any encoder on any data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.any_data import Data, Given, all_as_test, as_data, resolve
from zoo.data.dataset import OtherImages, Root, Split, data_words
from zoo.data.sources import data_name, has_training_split
from zoo.errors import DataError, ZooError, ZooWarning, did_you_mean, few
from zoo.evaluation.encode import Encoder, open_encoder
from zoo.evaluation.light import parse_protocol
from zoo.evaluation.measure import ProbeData, measure, warn_of_shared
from zoo.evaluation.predict import prior_in_loss
from zoo.evaluation.published import ProbeRun
from zoo.files import RUNS
from zoo.modules import Centers
from zoo.recipe.protocols import TRAINED, ClassifierProtocol, Protocol
from zoo.release import Preprocess, Release
from zoo.release.schema import is_own


def evaluate(
    release_or_model: Release | nn.Module | str | Path,
    protocol: str | Sequence[str],
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
            classifier; or a headless model, images `[B, 3, S, S]` to features `[B, D]`; for "classifier" one
            with scores `[B, C]` of the data's classes. It may be compiled, in `DataParallel`, or in bf16.
        protocol: on features that are computed once: "linear", "knn", "few_shot", "retrieval" or "classifier"
            (the learned centers). Trained on augmented images, for comparison with papers: "linear_full", the
            published linear evaluation, or "semi_supervised". A list of several computes the features once.
        data: the release's own when None; else any, see `zoo.data.any_data.Data`. If other data have no test
            split, protocols that read training images hold out a fifth to test on; the others measure all
            images. For "classifier", classes are matched by name, and some of the release's may be missing.
        preprocess: for a model that is not a release: a `zoo.release.Preprocess`, or a mapping with its
            fields. When None, from its `pretrained_cfg`; without one ImageNet's, with a warning.
        device: "auto", "cpu" or "cuda".
        workers: processes that decode images; None: as in the release's recipe.
        save: record the entry in the release's metrics.json and card, if the release is `writable`.
        out: folder for the state of a training. By default, in `run` of a `writable` release or `runs/NAME`;
            there, and with several protocols, a subfolder is named by everything that determines the result.
        resume: continue that training from its last checkpoint, or start if there is none.
        **settings: of the protocol, e.g. `k=200`. On a release's own data they default to the recorded ones,
            which repeats the recorded figure, otherwise to the protocol's defaults.

    Returns:
        The entry of metrics.json, or for several protocols a dict of entries by name; for a model also
        `preprocess`. Test labels enter only the metrics.

    Raises:
        Interrupted: when a training is stopped by a signal, after saving its state.
        ZooError: naming what cannot be measured and why.
    """
    names = [*map(str, protocol)] if isinstance(protocol, list | tuple) else [str(protocol)]
    if len({*names}) < max(1, len(names)):
        raise ZooError(f"protocol: found {names}, expected one or more, each once")
    alone = names == ["classifier"]
    encoder = open_encoder(release_or_model, preprocess, device=device, workers=workers, classifies=alone)
    release = encoder.release
    source = as_data(data) if release is None else own_data(release, data)
    recorded = dict[str, dict[str, Any]]()
    if release is not None and source.is_own:
        words = data_words(release.config["zoo"]["dataset"])
        for entry in reversed(release.metrics["evaluations"]):  # the first of several wins
            seed = {} if entry.get("seed") is None else {"seed": entry["seed"]}
            if is_own(entry, words):
                recorded[entry["protocol"]] = {**(entry.get("settings") or {}), **seed}
    # report every mistake before anything is measured
    protocols = [parse_protocol(name, {**recorded.get(name, {}), **settings}) for name in names]
    idle = [name for name in names if name not in TRAINED]
    if idle and (out is not None or resume):
        raise ZooError(f'out, resume: protocol "{idle[0]}" trains nothing; {" and ".join(TRAINED)} do')
    centers = release.require_centers() if release is not None and "classifier" in names else None
    folder = RUNS / encoder.name.replace(":", "_")
    if release is not None and release.writable:
        folder = release.path / "run"
    run = ProbeRun(source.config, Path(out or folder), exact=bool(out) and len(names) == 1, resume=resume)
    found = dict[str, dict[str, Any]]()
    for each in protocols:
        entry = found[each.protocol] = _evaluate(encoder, source, each, centers, run)
        if release is None:  # a release has it in config.json
            entry["preprocess"] = asdict(encoder.preprocess)
        elif save and release.writable:
            release.add_evaluation(entry)
    return found[protocol] if isinstance(protocol, str) else found


def _evaluate(
    encoder: Encoder, source: Given, protocol: Protocol, centers: Centers | None, run: ProbeRun
) -> dict[str, Any]:
    """Run one of the protocols, reusing features that earlier ones left in `encoder`."""
    (config, root, own), release = source, encoder.release
    classifies = isinstance(protocol, ClassifierProtocol)
    reads_training = not classifies and getattr(protocol, "gallery", "train") == "train"
    if not own and not reads_training:
        config = all_as_test(config)
    open_split = partial(open_own, release) if release is not None and own else open_dataset
    test_set, train_set = open_split(config, "test", root), None
    # a classifier model may have been trained on other data, so the training images here do not count
    if reads_training or (has_training_split(config, root) and not (release is None and classifies)):
        train_set = open_split(config, "train", root)
        if not own:  # for its own data the training has warned already
            warn_of_shared(train_set, test_set)
    searched = test_set if train_set is None or not reads_training else train_set
    if not classifies and (searched.class_counts > 0).sum() < 2:
        raise DataError(f"{protocol.protocol}: found images of 1 class, expected two or more")
    if release is not None and isinstance(protocol, ClassifierProtocol):
        if protocol.tau is not None and prior_in_loss(release.recipe):
            message = f"classifier: {release.name}'s loss already removed the log prior; tau does so again"
            warnings.warn(message, ZooWarning, stacklevel=2)
        test_set = _with_classes_of(release, test_set)
        train_set = None if train_set is None else _with_classes_of(release, train_set)
    return measure(protocol, ProbeData(encoder, train_set, test_set), test_set, centers, run, own=own)


def _with_classes_of(release: Release, dataset: ImageDataset) -> ImageDataset:
    """Return data relabelled to the classes of the release's centers, matched by name; some may be missing.

    For timm's own weights, equally many classes with entirely different names are matched by order.
    """
    ours, theirs = dataset.class_names, release.class_names
    if ours == theirs:
        return dataset
    if release.is_plain and len(ours) == len(theirs) and not {*ours} & {*theirs}:
        message = f'classifier: classes are taken in order, "{theirs[0]}" of {release.name} for "{ours[0]}"'
        warnings.warn(message, ZooWarning, stacklevel=3)
        return replace(dataset, class_names=theirs)
    known = {*theirs}
    unknown = next((name for name in ours if name not in known), "")
    if unknown or len(known) < len(theirs) or len({*ours}) < len(ours):
        found = f"found {len(ours)} classes ({few(ours)})"
        found += f', of which "{unknown}" is unknown' if unknown else ""
        expected = f"some of the {len(theirs)} of {release.name} ({few(theirs)}), each once"
        raise DataError(f"data: {found}, expected {expected}.{did_you_mean(unknown, theirs)}")
    return dataset.with_classes(theirs)


def open_own(release: Release, config: DataConfig, split: Split, root: Root) -> ImageDataset:
    """Open a split of the data that a release was trained on: the images it lists, in their order.

    DataError if a copy lacks some of them, or its classes have other names.
    """
    if release.config["zoo"].get("images_sha256") is None:  # no list
        return open_dataset(config, split, root)
    was = f"{release.name} was {'trained' if split == 'train' else 'measured'}"
    try:
        found = open_dataset(config, split, root, release.images.get(split))
    except OtherImages as error:
        raise DataError(f"{was} on other images: {error}. Other data: --data KIND:DIR") from None
    ours, theirs = found.class_names, release.class_names
    if ours != theirs:
        raise DataError(f"{was} on these images with the classes {few(theirs)}, found {few(ours)}")
    return found


def own_data(release: Release, data: Data = None) -> Given:
    """Return the data that a release was trained on, with true labels, or the data given instead.

    A folder with other names, labels or content is other data; for listed images see `open_own`. DataError as
    in `resolve`, or if a converted release, which names no data, is given none.
    """
    section = release.recipe.get("data")
    if data is None and section is None:
        raise DataError(f"data: {release.name} was converted and names no data of its own; give --data")
    own = None if section is None else parse(DataConfig, section, f"{release.name}: recipe.yaml: data")
    given = Given(own, None, is_own=True) if own is not None and data is None else resolve(data, own)
    if given.is_own and data is not None and release.config["zoo"].get("images_sha256") is None:
        found = None
        with suppress(DataError):  # a test split alone is not the release's own
            found = open_dataset(given.config, "train", given.root).describe()["sha256"]
        recorded = release.config["zoo"]["dataset"]
        if found != recorded.get("sha256"):
            given = as_data(data)
            holds_out = given.config.holdout is not None and own is not None and own.holdout is not None
            if holds_out and data_name(given.config.source, given.root) == recorded.get("name"):
                message = f'data: "{recorded["name"]}" is not as it was when {release.name} was trained'
                warnings.warn(f"{message}: test images may be training images", ZooWarning, stacklevel=2)
    return given._replace(config=given.config.model_copy(update={"partial_labels": None}))
