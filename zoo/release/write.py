"""`write_release`: from a trained encoder to a release folder; and the checks before one is published."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from zoo import backbones
from zoo.errors import ReleaseError
from zoo.files import writing
from zoo.modules.centers import Centers
from zoo.release import card, format
from zoo.release.release import Release
from zoo.release.tensors import ImageList, write_images


def write_release(
    folder: str | Path,
    *,
    name: str,
    encoder: nn.Module,
    arch: str,
    model_args: Mapping[str, Any],
    preprocess: format.Preprocess,
    class_names: Sequence[str],
    centers: Centers | None,
    objective: str,
    dataset: Mapping[str, Any],
    recipe_text: str,
    metrics: Mapping[str, Any],
    history: Mapping[str, Any] | None = None,
    images: Mapping[str, ImageList] | None = None,
    pictures: Mapping[str, Path] | None = None,
    description: str = "",
    license: str = format.LICENSE,
    dtype: Literal["float32", "float16"] = "float32",
) -> Release:
    """Write a release folder; if interrupted, it contains the old release or the new one.

    `encoder` is a timm model without a classifier: `arch` built with `model_args`. With `centers` `[C, D_f]`,
    `model.safetensors` has them as the encoder's classifier, if that is one linear layer on the pooled
    features; otherwise it is the headless encoder. `name` is the weights' name, `arch.tag`; `class_names` are
    the C classes of the training data; `dataset` describes it (`name`, `hub_id` if on the Hub); `recipe_text`
    is the exact recipe. `metrics` is `{"training": {...}, "evaluations": [...]}`, see
    `Release.add_evaluation`; `history` comes from `provenance.gather_history`; `images` lists the training
    ("train") and test ("test") images; `pictures` are PNG files by name. For dtype "float16" the caller has
    rounded encoder and centers. Other files in `folder` stay. A `ReleaseError` names parts that do not match.
    """
    folder = Path(folder)
    if (classes := getattr(encoder, "num_classes", None)) != 0:
        raise ReleaseError(f"encoder: found num_classes={classes}, expected a timm model with num_classes=0")
    # contiguous, as it will be loaded: another memory format sums in another order
    encoder = copy.deepcopy(encoder).cpu().to(memory_format=torch.contiguous_format)
    encoder.eval().requires_grad_(False)
    backbones.check_input(encoder, preprocess.input_size)
    model = encoder if centers is None else _classifier(encoder, centers, preprocess.input_size) or encoder
    record = {"format": 1, "training": {}, "evaluations": [], **metrics}
    record = format.checked_metrics(record, folder / format.METRICS)
    default: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    fixed = bool(default.get("fixed_input_size", False))  # then timm would build for the preprocessing's size
    names = {"label_names" if model is not encoder else "class_names": list(class_names)}
    config: dict[str, Any] = {
        "architecture": arch,
        "num_classes": int(model.num_classes),  # type: ignore[arg-type]
        "num_features": int(model.num_features),  # type: ignore[arg-type]
        "model_args": {**({"img_size": default["input_size"][-1]} if fixed else {}), **model_args},
        "pretrained_cfg": {  # of the default weights' config, only the names of the first and last layers
            "tag": name.split(".", 1)[-1],
            "custom_load": False,
            **asdict(preprocess),
            "input_size": [3, preprocess.input_size, preprocess.input_size],
            "fixed_input_size": fixed,
            "first_conv": default.get("first_conv"),
            "classifier": default.get("classifier"),
            "license": license,
        },
        **(names if model is not encoder else {}),
        **({"dtype": "float32"} if dtype == "float16" else {}),
        "zoo": {
            "format": 1,
            "name": name,
            "objective": objective,
            "dataset": dict(dataset),
            "description": description,
            "feature_dim": backbones.feature_dim(encoder),
            "has_centers": centers is not None,
            "centers_sha256": None,
            **(names if model is encoder else {}),
        },
    }
    with writing(f"{folder}: the release", ReleaseError), format.replacing(folder) as staging:
        tensors = {format.WEIGHTS: model.state_dict()}
        if centers is not None:
            tensors[format.CENTERS] = centers.tensors()
        for file, found in tensors.items():
            separate = {k: v.detach().cpu().contiguous().clone() for k, v in found.items()}
            if dtype == "float16":
                separate = {k: v.half() if v.is_floating_point() else v for k, v in separate.items()}
            (staging / file).write_bytes(save(separate, {"format": "pt"}))
        if images:
            write_images(images, staging / format.IMAGES)
        (staging / format.RECIPE).write_text(recipe_text, encoding="utf-8")
        (staging / format.METRICS).write_text(format.to_json(record), encoding="utf-8")
        if history is not None:
            (staging / format.HISTORY).write_text(json.dumps(history, allow_nan=False), encoding="utf-8")
        for picture, source in (pictures or {}).items():
            shutil.copyfile(source, staging / f"{picture}.png")
        for file, key in format.HASHED.items():
            if (staging / file).exists():
                config["zoo"][key] = format.sha256(staging / file)
        (staging / format.CARD).write_text(card.render(staging, config), encoding="utf-8")
        (staging / format.CONFIG).write_text(format.to_json(config), encoding="utf-8")
        check_release(written := Release.at(staging))  # what fails here could not be read by anyone
        loaded = written.load(dtype=next(encoder.parameters()).dtype).eval()
        if not outputs_match(output(loaded, preprocess.input_size), output(encoder, preprocess.input_size)):
            raise ReleaseError(f"{name}: {arch} with {model_args} does not compute what the encoder does")
    return Release.at(folder)


def check_release(release: Release) -> None:
    """Check that every file of a release can be read, matches its hash and fits the others.

    A `ReleaseError` names the first that does not. `card.check_card` checks the card's metadata.
    """
    release = Release.at(release.path)
    release.load(head="centers" if release.config["num_classes"] else None)
    _ = release.recipe, release.metrics, release.history, release.card, release.centers, release.images
    release.verify()


def _classifier(encoder: nn.Module, centers: Centers, size: int) -> nn.Module | None:
    """Return encoder + centers as a timm classifier, or None if its head is not one linear layer."""
    model: Any = copy.deepcopy(encoder)
    with torch.random.fork_rng(devices=[]):
        model.reset_classifier(len(centers.weight))
    head = model.get_classifier()
    if not isinstance(head, nn.Linear) or head.weight.shape != centers.weight.shape or head.bias is None:
        return None
    with torch.no_grad():
        head.weight.copy_(centers.weight)
        head.bias.copy_(centers.bias)
        expected = head(output(encoder, size))
    return model if outputs_match(output(model.requires_grad_(False).eval(), size), expected) else None


def noise(*shape: int) -> Tensor:
    """Return Gaussian noise from a fixed seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def output(model: nn.Module, size: int) -> Tensor:
    """Return a model's output for two images of noise."""
    with torch.no_grad():
        return model(noise(2, 3, size, size).to(next(model.parameters()).dtype))  # type: ignore[no-any-return]


def outputs_match(found: Tensor, expected: Tensor) -> bool:
    """Whether two outputs agree within float32 rounding error relative to their magnitude."""
    atol = 1e-4 * float(expected.abs().max())
    return found.shape == expected.shape and torch.allclose(found, expected, 1e-3, atol)
