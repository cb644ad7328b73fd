"""`Release`: a release folder as an object. Imports torch only when a method needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zoo.errors import ReleaseError
from zoo.files import write_atomic
from zoo.release import format, provenance
from zoo.release.schema import checked_evaluation, identity

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import nn

    from zoo.modules.centers import Centers
    from zoo.release.tensors import ImageList

Facts = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Release:
    """A release folder and its checked `config.json`; everything else is read and checked on access."""

    path: Path
    config: Facts = field(repr=False)

    @classmethod
    def at(cls, folder: Path) -> Release:
        """Open the release in `folder`."""
        release = cls(folder, format.read_config(folder))
        if not release.is_plain and not (folder / format.RECIPE).is_file():
            raise ReleaseError(f"{folder}: incomplete release, {format.RECIPE} is missing")
        return release

    @property
    def name(self) -> str:
        """The weights' name, `arch.tag`."""
        return str(self.config["zoo"]["name"])

    @property
    def is_plain(self) -> bool:
        """Whether this is a plain timm model, without a record of its training."""
        return self.config["zoo"]["recipe_sha256"] is None

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The exact recipe of the training, with overrides applied; for a plain timm model, what is known."""
        if not self.is_plain:
            return format.read_recipe(self.path)
        zoo, arch = self.config["zoo"], self.config["architecture"]
        return {
            **{key: zoo[key] for key in ("name", "description")},
            "converted": {"family": "timm"},
            "backbone": {"arch": arch, "args": dict(self.config["model_args"])},
            "objective": {"name": zoo["objective"]},
        }

    @property
    def metrics(self) -> dict[str, Any]:
        """`{"format": 1, "training": {...}, "evaluations": [...]}`, see `add_evaluation` for an entry."""
        none = {"format": 1, "training": {}, "evaluations": []}
        return none if self.is_plain else format.read_metrics(self.path)

    @property
    def history(self) -> dict[str, Any] | None:
        """The recorded training metrics, see `gather_history`; None if there are none."""
        return None if self.is_plain else provenance.read_history(self.path)

    @property
    def images(self) -> dict[str, ImageList]:
        """Content ids of the training ("train") and test ("test") images; empty if they are not listed."""
        from zoo.release import tensors

        return tensors.read_images(self.path, self.config)

    @cached_property
    def centers(self) -> Centers | None:
        """The learned class centers, or None when the objective has none."""
        from zoo.release import tensors

        return tensors.read_centers(self.path, self.config)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the training data, in the order of their indices."""
        return tuple(self.config.get("label_names") or self.config["zoo"].get("class_names") or ())

    @property
    def card(self) -> str:
        """The model card, Markdown with YAML metadata."""
        return format.read_text(self.path / format.CARD)

    @property
    def preprocess(self) -> format.Preprocess:
        """How images become the encoder's input."""
        cfg = self.config["pretrained_cfg"]
        mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
        how = cfg["crop_pct"], cfg["interpolation"], mean, std, cfg["crop_mode"]
        return format.Preprocess(cfg["input_size"][-1], *how)

    def transform(self, training: bool = False) -> Callable[[Any], Any]:
        """Return timm's transform from a PIL image of any mode to the encoder's input `[3, H, W]`; see `rgb`.

        With `training`, it is timm's augmentation for this input: random crops, flips and color jitter.
        """
        import timm
        from torchvision import transforms

        from zoo.release.tensors import rgb

        data_config = timm.data.resolve_data_config({}, pretrained_cfg=self.config["pretrained_cfg"])
        transform = timm.data.create_transform(**data_config, is_training=training)
        return transforms.Compose([transforms.Lambda(rgb), transform])  # type: ignore[no-any-return]

    def load(
        self,
        *,
        num_classes: int = 0,
        head: Literal["centers"] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **model_kwargs: Any,
    ) -> nn.Module:
        """Return the model; the arguments are those of `zoo.load`."""
        from zoo import backbones
        from zoo.release import tensors

        if model_kwargs.get("pretrained") is True:  # usual with timm, and true of every release
            del model_kwargs["pretrained"]
        config, weights = self.config, self.path / format.WEIGHTS
        if refused := sorted(backbones.NO_ARGUMENTS - backbones.CHOSEN & model_kwargs.keys()):
            raise ReleaseError(f"{refused[0]}: expected an argument of {config['architecture']}")
        if head not in (None, "centers"):
            raise ReleaseError(f'head: found {head!r}, expected None or "centers"')
        if type(num_classes) is not int or num_classes < 0:
            raise ReleaseError(f"num_classes: found {num_classes!r}, expected 0, for no head, or more")
        if bool(head) + bool(num_classes) + bool(model_kwargs.get("features_only")) > 1:
            raise ReleaseError('give one of num_classes=N, head="centers" and features_only=True')
        if head and not (config["zoo"]["has_centers"] and config["num_classes"]):
            raise ReleaseError(f"{self.name} has no centers in one linear layer; use num_classes=N")
        state = tensors.read_tensors(weights, config["zoo"]["weights_sha256"])
        try:
            model = tensors.build(config, config["num_classes"] if head else 0, state, weights, model_kwargs)
            if num_classes:
                model.reset_classifier(num_classes)  # type: ignore[operator]
                model.pretrained_cfg.pop("label_names", None)  # type: ignore[operator, union-attr]
            return model.to(device=device, dtype=dtype or next(model.parameters()).dtype)
        except Exception as error:  # from any of 1,400 constructors, with arbitrary arguments
            told = f"{weights}: cannot be loaded as {config['architecture']} (device={device}, dtype={dtype})"
            raise ReleaseError(f"{told}: {' '.join(str(error).split())}") from error

    def nearest_classes(self, image: Image.Image, k: int = 5) -> list[tuple[str, float]]:
        """Return the k (or all) nearest classes of a PIL image with probabilities, most probable first.

        They are the softmax of the centers' logits, without a class prior. The encoder is loaded only once.
        """
        import torch

        centers = self.require_centers()
        with torch.no_grad():
            features = self._encoder(self.transform()(image).unsqueeze(0))
        probability, index = centers.nearest(features, k)
        classes = (centers.class_names[c] for c in index[0].tolist())
        return list(zip(classes, probability[0].tolist(), strict=True))

    @cached_property
    def _encoder(self) -> nn.Module:
        return self.load().eval().requires_grad_(False)

    def require_centers(self) -> Centers:
        """Return the learned class centers; raise a `ReleaseError` if there are none."""
        if self.centers is None:
            raise ReleaseError(f"{self.name} has no centers: its objective learned none")
        return self.centers

    def verify(self) -> None:
        """Rehash weights, centers, recipe and image lists, and compare with the recorded hashes."""
        for name, key in () if self.is_plain else format.HASHED.items():
            if expected := self.config["zoo"].get(key):  # centers and image lists are optional
                format.check_sha256(self.path / name, expected, every_byte=True)

    @property
    def writable(self) -> bool:
        """Whether evaluations can be added: the folder is writable, neither shipped nor in a cache."""
        return os.access(self.path, os.W_OK) and not format.is_read_only(self.path)

    def add_evaluation(self, entry: Facts) -> None:
        """Add an evaluation to `metrics.json` and the card, replacing one with the same `identity`.

        `entry` has `protocol`, `data`, `split`, `metrics` (name -> value; accuracies in percent) and more.
        """
        from zoo.release import card

        checked = checked_evaluation(entry, f"an evaluation of {self.name}")
        with card.editing(self.path) as (_, metrics):
            made, same = metrics["evaluations"], identity(checked)
            place = next((i for i, old in enumerate(made) if identity(old) == same), len(made))
            made[place : place + 1] = [checked]  # in the same position: of several, the first one counts

    def add_example(self, image: Image.Image, *, credit: str) -> dict[str, float]:
        """Add a thumbnail of a PIL image to the card, with `credit`: a sentence on its author and licence.

        Returns the five most probable classes of the thumbnail, `example.png`, with their probabilities.
        """
        from zoo.release import card
        from zoo.release.tensors import rgb

        small = rgb(image).copy()
        small.thumbnail((160, 160))
        top = dict(self.nearest_classes(small))
        with card.editing(self.path) as (_, metrics):
            metrics["example"] = {"credit": credit, "top": top}
            format.checked_metrics(metrics, self.path / format.METRICS)
            write_atomic(self.path / format.EXAMPLE, lambda file: small.save(file, "PNG", optimize=True))
        return top

    def with_license(self, license: str) -> Release:
        """Set the licence of the weights, a Hub identifier or any name; return the release, reopened."""
        from zoo.release import card

        with card.editing(self.path) as (config, _):
            config["pretrained_cfg"]["license"] = license
        return Release.at(self.path)
