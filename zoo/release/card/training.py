"""What a card says of the training: data, run, and which of its weights these are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.errors import capital
from zoo.release.card.metadata import facts
from zoo.release.format import snapshot_of


def rows(dataset: Mapping[str, Any], training: Mapping[str, Any]) -> list[str]:
    """Return data, hardware, time, seed and what else is recorded, each as a line."""
    return [*_data(dataset), *_run(training), *([_weights(training)] if "epochs" in training else [])]


def _weights(training: Mapping[str, Any]) -> str:
    """Say which of a training's weights these are."""
    average, stopping = training.get("moving_average"), training.get("early_stopping")
    what, snapshot = "a moving average of the weights" if average else "the weights", snapshot_of(training)
    unfinished = ""
    if snapshot is not None:
        unfinished = (
            f"A snapshot of a training that had not ended: {snapshot}, at the learning rate that the recipe "
            "has there. "
        )
    if not isinstance(stopping, Mapping):
        return unfinished + f"These are {what} after " + ("it." if unfinished else "the last epoch.")
    metric = str(stopping.get("metric")).replace("_", " ")
    return unfinished + (
        f"These are {what} after epoch {stopping.get('best_epoch')}, chosen by the {metric} of "
        f"{stopping.get('validation_images')} images put aside from the training set, which no batch had; "
        "the test split decided nothing."
        + (f" Judged was {stopping['judged']}." if "judged" in stopping else "")
    )


def _data(dataset: Mapping[str, Any]) -> list[str]:
    """The training data in a line, and what that line does not say in lines of its own."""
    rest = dict(dataset)
    line = f"Data: {rest.pop('name', 'not recorded')}"
    if "split" in rest:
        line += f", {rest.pop('split')} split"
    if {"num_images", "num_classes"} <= rest.keys():
        images, classes = rest.pop("num_images"), rest.pop("num_classes")
        line += f", {images:,} images " + (f"of {classes} classes" if classes else "without classes")
    counts = rest.pop("class_counts", None)
    if counts:
        most, least = counts["largest"], counts["smallest"]
        line += (
            f", {most:,} of each" if most == least else f", from {most:,} down to {least:,} images a class"
        )
    if "sha256" in rest:
        rest["SHA-256 of the selected images' names and labels"] = rest.pop("sha256")
    return [line, *map(capital, facts(rest))]


def _run(training: Mapping[str, Any]) -> list[str]:
    """How long it ran on what, in a line, and what that line does not say in lines of its own."""
    rest = {key: fact for key, fact in training.items() if key != "snapshot"}  # told by what the weights are
    rows = []
    if {"epochs", "steps", "images", "seconds", "images_per_second", "hardware"} <= rest.keys():
        epochs, steps, images = (rest.pop(key) for key in ("epochs", "steps", "images"))
        seconds, rate, hardware = (rest.pop(key) for key in ("seconds", "images_per_second", "hardware"))
        rows.append(
            f"Run: {epochs:,} epochs, {steps:,} steps, {images:,} images in {seconds:,.1f} s "
            f"({rate:,.1f} images/s) on {hardware}"
        )
    versions = rest.pop("versions", None)
    rows += map(capital, facts(rest))
    if versions:
        rows.append("Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return rows
