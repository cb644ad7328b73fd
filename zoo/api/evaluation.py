"""`zoo.evaluate`: any encoder on any data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from zoo import backbones, catalog
from zoo.api.encoding import A_MODEL, opened, reading_of, view_of
from zoo.api.given import check_workers
from zoo.api.models import check_classifier, check_encoder, preprocess_of, unwrapped
from zoo.api.own_images import open_own
from zoo.config import parse
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.any_data import Data, Given, resolve, whole
from zoo.data.sources import has_training_split
from zoo.errors import DataError, RecipeError, ZooError, ZooWarning, did_you_mean
from zoo.evaluation.center_loss import CenterLoss, center_loss
from zoo.evaluation.classifier import OwnClassifier
from zoo.evaluation.measure import Encoded, ProbeRun, check_centers, measure
from zoo.files import RUNS
from zoo.modules import Centers
from zoo.recipe.protocols import PROTOCOLS, TRAINED, ClassifierProtocol, Protocol, RetrievalProtocol
from zoo.release import Preprocess, Release
from zoo.release.format import METRICS
from zoo.training import pick_device
from zoo.training.progress import show_status
from zoo.training.signals import interruptible


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
        **settings: of the protocol, e.g. `k=200`.

    Returns:
        The entry of metrics.json: protocol, data, split, metrics (percentages), of these the one that tables
        show first as `metric`, its name, and `value`; settings, seed (None where nothing is drawn), date; for
        a model also the `preprocess` that was used. Test labels enter metrics and value, and nothing else.

    Raises:
        Interrupted: when a training is stopped by SIGINT or SIGTERM, after saving its state.
        ZooError: for an unknown protocol or setting, missing data, a release without centers, a model that
            ends in a classifier, or for "classifier" one that does not.
    """
    found = evaluate_release(
        release_or_model,
        protocol,
        data,
        preprocess=preprocess,
        device=device,
        workers=workers,
        save=save,
        out=out,
        resume=resume,
        settings=settings,
    )
    return found.entry


class Evaluated(NamedTuple):
    """What came of an evaluation.

    Attributes:
        entry: as `evaluate` returns it.
        record: the release's metrics.json, which has it now, as the card has; None: nothing was recorded.
        reason: why nothing was.
    """

    entry: dict[str, Any]
    record: Path | None
    reason: str = ""


def evaluate_release(
    release_or_model: Release | nn.Module | str | Path,
    protocol: str,
    data: Data,
    *,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    device: str = "auto",
    workers: int | None,
    save: bool,
    out: str | Path | None,
    resume: bool,
    settings: Mapping[str, Any],
) -> Evaluated:
    """Do what `evaluate` does, and tell whether the entry is recorded."""
    if protocol not in PROTOCOLS:
        hint = did_you_mean(protocol, PROTOCOLS)
        raise ZooError(f'protocol: found "{protocol}", expected one of {", ".join(PROTOCOLS)}.{hint}')
    _check_settings(protocol, settings)
    chosen: Any = parse(PROTOCOLS[protocol], {"protocol": protocol, **settings}, f"protocol {protocol}")
    if protocol not in TRAINED and (out is not None or resume):
        raise ZooError(
            f'{"resume" if resume else "out"}: protocol "{protocol}" trains nothing that could be kept; '
            f"{' and '.join(TRAINED)} do"
        )
    check_workers(workers)
    place = pick_device(device, "device")
    release: Release | None = None
    centers: Centers | OwnClassifier | None = None
    outputs = None
    if isinstance(release_or_model, nn.Module):
        model, name = unwrapped(release_or_model), A_MODEL
        view = preprocess_of(model, preprocess)
        if protocol == "classifier":
            outputs, centers = check_classifier(model, view.input_size), OwnClassifier()
        else:
            check_encoder(model, view.input_size)
    else:
        release = opened(release_or_model, preprocess)
        model, view, centers, name = release.load(), release.preprocess, release.centers, release.name
    check_centers(chosen, centers)
    config, root, is_own = resolve_data(data, release)
    if not is_own and not _reads_training(chosen):
        config = whole(config)
    reading = reading_of(release)
    open_split = partial(open_own, release) if release is not None and is_own else open_dataset
    test_set = open_split(config, "test", root)
    by_centers = release if protocol == "classifier" and centers is not None else None
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
        model,
        train_set,
        test_set,
        view=view_of(view),
        mean=view.mean,
        std=view.std,
        device=place,
        workers=reading.workers if workers is None else workers,
        cache=reading.cache,
    )
    kept = None if release is None else _kept_as_it_is(release)
    own = release is not None and kept is None
    run = ProbeRun(
        name=name,
        arch=backbones.name_of(model) if release is None else str(release.config["architecture"]),
        data=config,
        folder=Path(out) if out is not None else _runs_of(release, own, name),
        exact=out is not None,
        resume=resume,
    )
    if release is not None and isinstance(centers, Centers) and _takes_prior_off(chosen):
        _warn_of_prior(release, centers)
    entry = measure_aloud(chosen, encoded, centers, run, learned_elsewhere=not is_own)
    if release is None:  # whose own config.json would say it
        entry["preprocess"] = asdict(view)
    if release is None or kept is not None or not save:
        return Evaluated(entry, None, kept or (f"{name} is no release" if release is None else "save is off"))
    release.add_evaluation(entry)
    return Evaluated(entry, release.path / METRICS)


def _check_settings(protocol: str, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the protocol lacks; which protocol it is has been said."""
    names = sorted({*PROTOCOLS[protocol].model_fields} - {"protocol"})
    for key in settings:
        if key not in names:
            raise RecipeError(
                f'protocol {protocol}: unknown setting "{key}".{did_you_mean(key, names)} '
                f"It has: {', '.join(names) or 'none'}"
            )


def _kept_as_it_is(release: Release) -> str | None:
    """Say why nothing is added to a release; None: it is a folder of the user's."""
    if catalog.is_shipped(release.path):
        return "a shipped release stays as it is"
    if not release.writable:
        if release.is_plain:
            return f"{release.name} is a plain timm model"
        downloaded = (release.path / METRICS).is_symlink()
        return "a downloaded release stays as it is" if downloaded else "its folder cannot be written"
    return None


def measure_aloud(
    protocol: Protocol,
    encoded: Encoded,
    centers: Centers | OwnClassifier | None,
    run: ProbeRun,
    *,
    learned_elsewhere: bool = False,
) -> dict[str, Any]:
    """Do what `measure` does, and say so on standard error; a training shows its own progress there."""
    trains = protocol.protocol in TRAINED
    text = f"measuring: {protocol.protocol}, {len(encoded.test_set):,} test images"
    with (
        interruptible(lambda: "what was trained so far is kept") if trains else nullcontext(),
        nullcontext() if trains else show_status(text),
    ):
        return measure(protocol, encoded, centers, run, learned_elsewhere=learned_elsewhere)


def _runs_of(release: Release | None, own: bool, name: str) -> Path:
    """Return where trainings around an encoder keep their state: never in a release that must not change."""
    if release is not None and own:
        return release.path / "run"
    return RUNS / ("model" if name == A_MODEL else name.replace(":", "_"))


def _warn_of_prior(release: Release, centers: Centers) -> None:
    """Say so when the prior that `tau` takes off has been taken off in training already."""
    loss = center_loss(release.recipe, centers.class_counts)
    if isinstance(loss, CenterLoss) and (loss.prior != loss.prior[0]).any():
        warnings.warn(
            f"classifier, tau: {release.name} was trained with the log prior in its loss, so its centers are "
            "without it as they are; tau takes it off again. It is for centers of plain cross-entropy",
            ZooWarning,
            stacklevel=3,
        )


def _takes_prior_off(protocol: Protocol) -> bool:
    return isinstance(protocol, ClassifierProtocol) and protocol.tau is not None


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
    known = set(theirs)
    unknown = next((name for name in ours if name not in known), None)
    ambiguous = len(known) < len(theirs) or len(set(ours)) < len(ours)
    if ours != theirs and (unknown is not None or ambiguous):
        found, expected = (", ".join(names[:5]) + ", ..." * (len(names) > 5) for names in (ours, theirs))
        raise DataError(
            f"data: found {len(ours)} classes ({found}), expected the "
            f"{len(theirs)} of {release.name}'s centers ({expected}) or some of them"
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


def resolve_data(data: Data, release: Release | None) -> Given:
    """Return the data that a release names, with the true labels, which probes read, or other data.

    Raises:
        DataError: see `resolve`; where a converted release, which names none, is given none.
    """
    if release is None:
        return resolve(data, None)
    return own_data(release.recipe, release.name, data)


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
