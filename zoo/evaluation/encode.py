"""Encode images to features, with any encoder."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.data import resolve_data_config
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse
from torch.nn.parallel import DistributedDataParallel

from zoo import backbones, hub
from zoo.backbones import evaluating, keeping_memory
from zoo.config import parse, type_name
from zoo.data import EvalView, ImageDataset, eval_images
from zoo.data.decode import content_key
from zoo.errors import DataError, ZooError, ZooWarning
from zoo.files import cache_folder, write_atomic
from zoo.recipe import Recipe
from zoo.release import Preprocess, Release
from zoo.release.schema import Input
from zoo.training import pick_device
from zoo.training.precision import float32_products
from zoo.training.progress import say, show_images

CPU = torch.device("cpu")
CACHE_BYTES = 4 << 30  # limit of the feature cache
_IMAGENET_CLASSES = {1000, 21841, 21843}  # output sizes that no projection head would have


class Features(NamedTuple):
    """Encoded images, in order, on the CPU.

    Attributes:
        features: `[N, D]`, float32, as the model returns them (not normalised).
        labels: class indices `[N]`, int64; -1 for images without a label.
    """

    features: Tensor
    labels: Tensor


def extract(
    model: nn.Module,
    batches: Iterable[Tensor | Sequence[Tensor]],
    *,
    device: torch.device | str,
    progress: Callable[[int], object] | None = None,
) -> Features:
    """Encode `batches` with `model` in evaluation mode and without gradients.

    The model is moved to `device` and computes in its parameters' dtype, even under autocast. The modes of
    its modules are restored.

    Args:
        model: maps images `[B, 3, H, W]` to features `[B, D]`.
        batches: images `[B, 3, H, W]`, or pairs of images and labels `[B]`.
        device: where to compute.
        progress: called after each batch with its number of images.

    Raises:
        DataError: if there are no images, or the model's output is not `[B, D]`.
    """
    device = torch.device(device)
    model.to(device)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    parts: list[Features] = []
    encode: nn.Module | None = None
    # no_grad, not inference_mode: the features may later be used in a differentiable loss
    autocast = torch.autocast(device.type, enabled=False)
    with evaluating(model), torch.no_grad(), autocast, float32_products(), keeping_memory():
        for batch in batches:
            images, labels = (batch, torch.full((len(batch),), -1)) if isinstance(batch, Tensor) else batch
            images = images.to(device=device, dtype=dtype, non_blocking=True)
            encode = fuse_for_cpu(model, images) if encode is None else encode
            output = encode(images)
            if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(images):
                found = list(output.shape) if isinstance(output, Tensor) else type_name(output)
                expected = f"expected [{len(images)}, D] of a headless encoder with pooling (num_classes=0)"
                raise DataError(f"features: the model returned {found}, {expected}")
            parts.append(Features(output.float().cpu(), labels.long().cpu()))
            if progress is not None:
                progress(len(images))
    if not parts:
        raise DataError("features: the data set gave no batch, expected at least one image")
    return Features(*(torch.cat(column) for column in zip(*parts, strict=True)))


def fuse_for_cpu(model: nn.Module, images: Tensor) -> nn.Module:
    """Return an equivalent copy of a model in evaluation mode that is faster on a CPU, or the model itself.

    BatchNorm is folded into the preceding convolution, if torch.fx can trace the model; uses channels_last.
    """
    normalizes = any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    if images.device.type != "cpu" or len(images) < 32 or not normalizes or hooked:
        return model  # no gain, or hooks would be called with a copy's layers
    for change in (fuse, deepcopy):
        with suppress(Exception):  # tracing may fail, or bake in a value: hence two batch sizes
            form: Any = change(deepcopy(model).float()).to(memory_format=torch.channels_last).to(images.dtype)
            pairs = [(form(some).float(), model(some).float()) for some in torch.split(images[:5], 3)]
            tolerance = torch.finfo(images.dtype).eps ** 0.5
            if all(torch.dist(found, expected) / expected.norm() < tolerance for found, expected in pairs):
                return cast(nn.Module, form)
    return model


@dataclass(frozen=True)
class Encoder:
    """A headless model with its preprocessing, device and number of decoding processes (0: this one).

    `name` is the release's or recipe's, else "model"; `mirrored` flips every image left to right.
    """

    model: nn.Module
    preprocess: Preprocess
    name: str = "model"
    release: Release | None = None
    device: torch.device = CPU
    workers: int = 0
    mirrored: bool = False
    _encoded: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)  # for one call

    @classmethod
    def of_recipe(cls, model: nn.Module, recipe: Recipe) -> Encoder:
        """Return the encoder of a recipe's training, with the recipe's preprocessing."""
        view, mean, std = recipe.views.eval, tuple(recipe.data.mean), tuple(recipe.data.std)
        preprocess = Preprocess(view.size, view.crop_pct, view.interpolation, mean, std)
        device = pick_device(recipe.training.device)
        return cls(model, preprocess, recipe.name, device=device, workers=recipe.views.workers)

    @property
    def view(self) -> EvalView:
        """Size, crop and interpolation of the input images."""
        fields = {"crop_pct": self.preprocess.crop_pct, "interpolation": self.preprocess.interpolation}
        return parse(EvalView, {"size": self.preprocess.input_size, **fields}, self.name)

    def batches(
        self, dataset: ImageDataset, errors: dict[int, str] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images `[B, 3, S, S]` and labels `[B]`; arguments and errors are those of `eval_images`."""
        batches = eval_images(
            dataset,
            self.view,
            self.preprocess.mean,
            self.preprocess.std,
            batch_size=64 if self.device.type == "cpu" else 256,  # small batches use a CPU's caches better
            device=self.device,
            workers=self.workers,
            errors=errors,
            crop_mode=self.preprocess.crop_mode,
        )
        return ((images.flip(-1), labels) for images, labels in batches) if self.mirrored else batches

    def encode(self, dataset: ImageDataset) -> Features:
        """Encode a data set, or reuse its features of an earlier call; DataError for an unreadable image."""
        key = repr(dataset.without_labels().describe())
        if key not in self._encoded:
            self._encoded[key] = self._features(dataset)
        return Features(self._encoded[key], torch.from_numpy(dataset.labels.copy()))

    def encode_ensemble(self, dataset: ImageDataset, sizes: Sequence[int]) -> Tensor:
        """Return each image's mean features `[N, D]` over several sizes, each also mirrored.

        Raises `ZooError` for a size that the model does not accept, `DataError` as `encode` does.
        """
        found = list[Tensor]()
        for size in sizes:
            backbones.check_input(self.model, size)
            for mirrored in (False, True):
                preprocess = replace(self.preprocess, input_size=size)
                view = replace(self, preprocess=preprocess, mirrored=mirrored)
                found.append(view.encode(dataset).features)
        return torch.stack(found).mean(dim=0)

    def _features(self, dataset: ImageDataset) -> Tensor:
        """Return the features `[N, D]`; a release's are cached in `$XDG_CACHE_HOME/zoo/features`."""
        key = None
        if self.release is not None:  # everything that determines the features besides the pixels
            config, gpu = self.release.config, self.device.type == "cuda"
            dtypes = sorted({str(each.dtype) for each in self.model.parameters()})
            model = [config["architecture"], config["model_args"], config["zoo"]["weights_sha256"], dtypes]
            code = [version(name) for name in ("contrastive-zoo", "torch", "timm")]
            where = torch.cuda.get_device_name() if gpu else torch.backends.cpu.get_cpu_capability()
            place = self.device.type, where, torch.get_num_threads()
            key = content_key(dataset, model, self.preprocess, self.mirrored, code, *place)
        file = cache_folder("features") / f"{key}.safetensors"
        if key is not None and (kept := read_features(file, len(dataset))) is not None:
            say(f"features of {len(dataset):,} images: from the cache, {file}")
            return kept
        features = extract(self.model, self.batches(dataset), device=self.device).features
        if key is not None:
            write_features(features, file)
        return features


def read_features(file: Path, count: int) -> Tensor | None:
    """Return the features `[count, D]` in a cache file; None if it is missing or damaged."""
    with suppress(OSError, SafetensorError, LookupError, TypeError):
        with safe_open(file, "pt") as stored:
            features, recorded = stored.get_tensor("features"), stored.metadata()["sha256"]
        if len(features) == count and hashlib.sha256(features.numpy().data).hexdigest() == recorded:
            os.utime(file)  # the least recently used file is deleted first
            return cast(Tensor, features)
    return None


def write_features(features: Tensor, file: Path) -> None:
    """Write features to a cache file, and delete the least recently used beyond `CACHE_BYTES`."""
    metadata = {"sha256": hashlib.sha256(features.numpy().data).hexdigest()}
    with suppress(OSError, SafetensorError):  # do without a cache that cannot be written
        write_atomic(file, lambda temporary: save_file({"features": features}, temporary, metadata))
        left = CACHE_BYTES
        for old in sorted(file.parent.iterdir(), key=lambda old: -old.stat().st_mtime_ns):
            left -= old.stat().st_size
            if left < 0:
                old.unlink()


def open_encoder(
    given: Release | nn.Module | str | Path,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    workers: int | None = None,
    classifies: bool = False,
) -> Encoder:
    """Return the encoder of a release, or wrap a model as one; arguments are those of `zoo.evaluate`.

    Raises:
        ZooError: for an unavailable device, an invalid number of workers, an unknown name, `preprocess` for a
            release, or a model that ends in a classifier, unless it `classifies`.
    """
    if workers:
        check_number("workers", workers, 0)
    chosen_device = pick_device(device, "device")
    if isinstance(given, nn.Module):
        model: Any = given
        while hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel | DistributedDataParallel):
            model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
        input_of = preprocess_of(model, preprocess)
        if not classifies:
            refuse_classifier(model, input_of.input_size)
        return Encoder(model, input_of, device=chosen_device, workers=workers or 0)
    release = hub.open(given)
    if preprocess is not None:
        raise ZooError("preprocess: a release has its own; give it only for a model")
    if workers is None:
        workers = (release.recipe.get("views") or {}).get("workers", 0)
    return Encoder(release.load(), release.preprocess, release.name, release, chosen_device, workers)


def encode_images(
    dataset: ImageDataset, encoder: Encoder, doing: str, max_bad_images: int = 0
) -> tuple[Tensor, list[int], dict[str, str]]:
    """Encode all images, showing progress; skip unreadable ones up to a limit, with a warning.

    Returns:
        Features `[N, D]`; the images' indices in the data set, ascending; name and error of those skipped.

    Raises:
        DataError: if more images are unreadable than the limit, or all are, with the first one's error.
    """
    check_number("max_bad_images", max_bad_images, 0)
    errors: dict[int, str] = {}

    def readable() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in encoder.batches(dataset, errors=errors):
            if len(errors) <= max_bad_images:  # beyond the limit, only count the unreadable ones
                yield batch
        if len(errors) > max_bad_images or len(errors) == len(dataset):
            said = f"images: {next(iter(errors.values()))}"
            if len(errors) < len(dataset):
                said += f"; or leave them out: --max-bad-images {len(errors)}"
            raise DataError(said)

    with show_images(doing, len(dataset)) as progress:
        features, _ = extract(encoder.model, readable(), device=encoder.device, progress=progress)
    left_out = {dataset.name_of(index): error for index, error in errors.items()}
    if left_out:
        names = ", ".join(f'"{name}"' for name in left_out)
        message = f"images: {len(left_out)} of {len(dataset):,} cannot be read and are left out: {names}"
        warnings.warn(message, ZooWarning, stacklevel=3)
    return features, [index for index in range(len(dataset)) if index not in errors], left_out


def check_number(name: str, value: object, least: int) -> None:
    """Raise `ZooError` naming an argument that is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ZooError(f"{name}: found {value!r}, expected {least} or more")


def preprocess_of(model: nn.Module, given: Preprocess | Mapping[str, Any] | None) -> Preprocess:
    """Return the preprocessing for `model`: as given, from its `pretrained_cfg`, or ImageNet's.

    A `ZooError` names the field that is invalid.
    """
    where, plain = "preprocess", asdict(given) if isinstance(given, Preprocess) else given
    if plain is None:
        known, where = getattr(model, "pretrained_cfg", None), "model: pretrained_cfg"
        try:
            plain = resolve_data_config(pretrained_cfg=known or {"input_size": (3, 224, 224)})
            size = backbones.size_built_for(model) or plain["input_size"][-1]
        except (TypeError, AttributeError, KeyError, IndexError) as error:  # a hand-made `pretrained_cfg`
            raise ZooError(f"{where}: not in timm's form ({error}); give preprocess=") from None
        plain = {key: plain[key] for key in Input.model_fields if key in plain} | {"input_size": size}
        if not known:
            message = f'model: {type(model).__name__} has no "pretrained_cfg", so ImageNet\'s is used,'
            warnings.warn(f"{message} {plain}; give preprocess= to change it", ZooWarning, stacklevel=4)
    return Preprocess(**parse(Input, plain, where, ZooError).model_dump())


def refuse_classifier(model: nn.Module, size: int) -> None:
    """Raise `ZooError` if a model does not accept images `[B, 3, size, size]`, or ends in a classifier.

    A classifier is timm's own, or a last linear layer with as many outputs as ImageNet has classes.
    """
    output, given = backbones.check_input(model, size), cast(Any, model)
    width = output.shape[1] if isinstance(output, Tensor) and output.ndim == 2 else None
    timms = hasattr(model, "reset_classifier") and given.num_classes == width
    last, layer = list(model.named_modules())[-1]
    linear = isinstance(layer, nn.Linear) and layer.out_features == width in _IMAGENET_CLASSES
    if linear or (timms and not isinstance(given.get_classifier(), nn.Identity)):
        expected = f'an encoder: num_classes=0, or torch.nn.Identity() in the place of "{last}"'
        raise ZooError(f"model: found a classifier with {width} outputs, expected {expected}")
