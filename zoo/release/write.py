"""`write_release`: from a trained encoder to a release folder; and what must hold before others get one."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from zoo import backbones
from zoo.errors import ReleaseError
from zoo.image_list import ImageList
from zoo.modules.centers import Centers
from zoo.release import card, configs, format, schema
from zoo.release import history as histories
from zoo.release.build import check_arguments, check_fit
from zoo.release.evaluations import checked_evaluation
from zoo.release.release import Release
from zoo.release.tensors import read_centers, read_images, to_half, write_images, write_tensors

# What one release in a folder has, and the next may lack.
_OPTIONAL = (format.CENTERS, format.IMAGES, format.HISTORY, format.PICTURES)


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
    """Write the release folder; it holds the old release or the new one, whatever stops this.

    With `centers`, `model.safetensors` is the classifier that they make of the encoder, for every
    architecture whose classifier is one linear layer on the pooled features; else it is the headless encoder.

    Args:
        folder: may exist and hold other things, e.g. `run/`; these stay and are no part of the release.
        name: the weights' name, `arch.tag`.
        encoder: a timm model without classifier. It is not changed.
        arch: the encoder's name in timm.
        model_args: the arguments it was built with, without `num_classes`.
        preprocess: the test-time preprocessing.
        class_names: names of the training data's classes, `C` of them; may be empty without labels.
        centers: learned class centers, `[C, D_f]`, and PiCO's prototypes.
        objective: the objective's name.
        dataset: plain facts about the training data: `name`, and if it is on the Hub `hub_id`.
        recipe_text: the exact recipe as YAML, overrides applied.
        metrics: `{"training": {...}, "evaluations": [...]}`, see `Release.add_evaluation`.
        history: how the training went, as `history.gather` makes it; None where nothing was recorded.
        images: which were trained on ("train") and measured on ("test"); None where they are not listed.
        pictures: PNG files by name.
        description: the card's hand-written paragraph.
        license: of the weights, as the Hub writes it, or another one's name; "unknown" where none is known.
        dtype: of the floating-point numbers in the files; "float16" takes an encoder and centers that were
            rounded to it, since what was measured on others would be no figure of the release.

    Raises:
        ReleaseError: when the parts do not fit each other, or the folder cannot be written.
    """
    folder = Path(folder)
    check_arguments(model_args)
    if (classes := getattr(encoder, "num_classes", None)) != 0:
        raise ReleaseError(f"encoder: found num_classes={classes}, expected a timm model with num_classes=0")
    # contiguous, as it will be loaded: another layout sums in another order
    encoder = copy.deepcopy(encoder).cpu().to(memory_format=torch.contiguous_format)
    encoder.eval().requires_grad_(False)
    backbones.check_input(encoder, preprocess.input_size)
    model = encoder if centers is None else _classifier(encoder, centers, preprocess.input_size) or encoder
    default: Mapping[str, Any] = encoder.pretrained_cfg  # type: ignore[assignment]
    args = dict(model_args)
    if default.get("fixed_input_size"):  # else timm would take the size of the preprocessing
        args.setdefault("img_size", default["input_size"][-1])
    config: dict[str, Any] = {
        "architecture": arch,
        "num_classes": int(model.num_classes),  # type: ignore[arg-type]
        "num_features": int(model.num_features),  # type: ignore[arg-type]
        "model_args": args,
        "pretrained_cfg": _timm_config(model, preprocess, name.split(".", 1)[-1], license),
    }
    if model is not encoder:
        config["label_names"] = list(class_names)
    if dtype == "float16":
        config["dtype"] = "float32"
    evaluations = [checked_evaluation(entry, "metrics") for entry in metrics.get("evaluations", [])]
    record = {"format": schema.FORMAT, "training": {}, **metrics, "evaluations": evaluations}
    # Only an old release's own pictures are leftovers; a folder of the user's may hold others.
    stale = _OPTIONAL if (folder / format.CONFIG).exists() else ()
    try:
        with format.replacing(folder, stale=stale) as staging:
            tensors = {format.WEIGHTS: model.state_dict()}
            if centers is not None:
                tensors[format.CENTERS] = {k: v for k, v in centers._asdict().items() if v is not None}
            for file, found in tensors.items():
                write_tensors(_stored(found, dtype), staging / file, {"format": "pt"})
            if images:
                write_images(images, staging / format.IMAGES)
            (staging / format.RECIPE).write_text(recipe_text, encoding="utf-8")
            (staging / format.METRICS).write_text(format.to_json(record), encoding="utf-8")
            if history is not None:
                (staging / format.HISTORY).write_text(histories.to_json(history), encoding="utf-8")
            for picture, source in (pictures or {}).items():
                shutil.copyfile(source, staging / f"{picture}.png")
            config["zoo"] = {
                "format": schema.FORMAT,
                "name": name,
                "objective": objective,
                "dataset": dict(dataset),
                "description": description,
                "feature_dim": backbones.feature_dim(encoder),
                "has_centers": centers is not None,
                "recipe_sha256": format.sha256(staging / format.RECIPE),
                "weights_sha256": format.sha256(staging / format.WEIGHTS),
                "centers_sha256": None if centers is None else format.sha256(staging / format.CENTERS),
            }
            if images:
                config["zoo"]["images_sha256"] = format.sha256(staging / format.IMAGES)
            if "label_names" not in config:
                config["zoo"]["class_names"] = list(class_names)
            try:
                (staging / format.CARD).write_text(card.render(staging, config), encoding="utf-8")
                (staging / format.CONFIG).write_text(format.to_json(config), encoding="utf-8")
                check_release(written := Release.at(staging))  # what is refused here nobody could read
                _check_reload(written, encoder, preprocess.input_size)
            except ReleaseError as error:
                raise ReleaseError(str(error).replace(str(staging), str(folder))) from error
    except (OSError, SafetensorError) as error:  # a full disk is the second, too
        raise ReleaseError(f"{folder}: the release cannot be written: {error}") from error
    except (ValueError, TypeError) as error:  # json: nan, or an object that is not plain
        raise ReleaseError(f"{folder}: the release cannot be recorded as JSON: {error}") from error
    return Release.at(folder)


def check_release(release: Release) -> None:
    """Make sure that a release is whole: every file can be read, has its hash and fits the others.

    The card is for `card.check_card`.

    Raises:
        ReleaseError: naming the first file that is not as it should be.
    """
    folder, config = release.path, configs.read_config(release.path)
    format.read_recipe(folder)  # what bounds the files' sizes comes before what reads every byte of them
    check_fit(folder, config, config["num_classes"])
    release.verify()
    read_centers(folder, config)
    read_images(folder, config)
    format.read_metrics(folder)
    histories.read(folder)
    format.read_text(folder / format.CARD)


def _timm_config(model: nn.Module, preprocess: format.Preprocess, tag: str, license: str) -> dict[str, Any]:
    """Return the part of `config.json` that timm and transformers read, without the architecture.

    Nothing is taken over from the architecture's default weights except where its first convolution and its
    classifier are: provenance, licence and preprocessing are this model's own. `num_classes` stands at the
    top level alone; transformers refuses it in `model_args`.
    """
    default: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]
    return {
        "tag": tag,
        "custom_load": False,
        "input_size": [3, preprocess.input_size, preprocess.input_size],
        "fixed_input_size": bool(default.get("fixed_input_size", False)),
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop_pct,
        "crop_mode": "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "first_conv": default.get("first_conv"),
        "classifier": default.get("classifier"),
        "license": license,
    }


def _classifier(encoder: nn.Module, centers: Centers, size: int) -> nn.Module | None:
    """Return encoder + centers as a timm classifier, or None where the architecture has no such head."""
    model = copy.deepcopy(encoder)
    name = model.pretrained_cfg.get("classifier")  # type: ignore[union-attr, operator]
    with torch.random.fork_rng(devices=[]):
        model.reset_classifier(len(centers.weight))  # type: ignore[operator]
    head = dict(model.named_modules()).get(name) if isinstance(name, str) else None
    if not isinstance(head, nn.Linear) or head.weight.shape != centers.weight.shape or head.bias is None:
        return None
    if head.bias.shape != centers.bias.shape:
        return None
    with torch.no_grad():
        head.weight.copy_(centers.weight)
        head.bias.copy_(centers.bias)
        model.requires_grad_(False).eval()
        images = _images(encoder, size)
        expected = nn.functional.linear(encoder(images), head.weight, head.bias)
        found = model(images)
    same = isinstance(found, Tensor) and found.shape == expected.shape and _close(found, expected)
    return model if same else None


def _close(found: Tensor, expected: Tensor) -> bool:
    """Whether two outputs agree to float32's error at the size that they have."""
    scale = float(expected.nan_to_num().abs().max())
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * max(scale, 1e-6), equal_nan=True)


def _images(model: nn.Module, size: int) -> Tensor:
    dtype = next(model.parameters()).dtype
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(dtype)


def _stored(tensors: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return CPU tensors as safetensors takes them: contiguous, each with a storage of its own.

    Raises:
        ReleaseError: naming a tensor with numbers that float16 does not hold, if that is `dtype`.
    """
    stored = dict(tensors) if dtype == "float32" else to_half(tensors)
    for name, tensor in tensors.items():
        if not torch.equal(stored[name].to(tensor.dtype).nan_to_num(), tensor.nan_to_num()):
            raise ReleaseError(f"{name}: found numbers that float16 does not hold, expected rounded ones")
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in stored.items()}


def _check_reload(release: Release, encoder: nn.Module, size: int) -> None:
    """Make sure that the written weights make the features of this encoder."""
    loaded = release.load(dtype=next(encoder.parameters()).dtype).eval()
    images = _images(encoder, size)
    with torch.no_grad():
        same = _close(loaded(images), encoder(images))
    if not same:
        arch, arguments = release.config["architecture"], dict(release.config["model_args"])
        raise ReleaseError(
            f"{release.name}: {arch} built with {arguments}"
            " does not compute what the encoder does; are arch and model_args those it was made with?"
        )
