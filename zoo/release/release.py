"""`Release`: a release folder as an object."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from PIL import Image
from torch import nn
from torchvision import transforms

from zoo import catalog
from zoo.errors import ReleaseError, ZooWarning
from zoo.files import is_dir, is_file, write_atomic, write_text
from zoo.image_list import ImageList
from zoo.locks import turn
from zoo.modules.centers import Centers
from zoo.pixels import rgb, shrunk
from zoo.release import card, configs, format, provenance, tensors
from zoo.release import history as histories
from zoo.release.build import build
from zoo.release.evaluations import checked_evaluation, identity

_EXAMPLE_BYTES, _EXAMPLE_SIDE = 40_000, 320  # pixels; of the picture on a card, at most


@dataclass(frozen=True, eq=False)
class Release:
    """A checked release folder. Everything but `config` is read from the disk when it is asked for.

    Attributes:
        path: the folder.
        config: the content of `config.json`.
    """

    path: Path
    config: Mapping[str, Any] = field(repr=False)

    @classmethod
    def at(cls, folder: Path) -> Release:
        """Open the release in `folder`.

        Raises:
            ReleaseError: saying what is missing or wrong.
        """
        release = cls(folder, configs.read_config(folder))
        if release.is_plain:
            tensors.read_header(folder / format.WEIGHTS)
            return release
        needed = [format.RECIPE, format.METRICS, *format.recorded_tensors(release.config["zoo"])]
        if absent := [name for name in needed if not is_file(folder / name)]:
            raise ReleaseError(f"{folder}: incomplete release, {', '.join(absent)} is missing")
        return release

    @property
    def name(self) -> str:
        """The weights' name, `arch.tag`."""
        return str(self.config["zoo"]["name"])

    @property
    def is_plain(self) -> bool:
        """Whether this is a plain timm model, of whose training nothing is recorded."""
        return configs.is_plain(self.config)

    @property
    def recipe(self) -> dict[str, Any]:
        """The exact recipe of the training, overrides applied."""
        return configs.plain_recipe(self.config) if self.is_plain else format.read_recipe(self.path)

    @property
    def metrics(self) -> dict[str, Any]:
        """`{"format": 1, "training": {...}, "evaluations": [...]}`, see `add_evaluation` for one of these."""
        if self.is_plain:
            return {"format": 1, "training": {}, "evaluations": []}
        return format.read_metrics(self.path)

    @property
    def history(self) -> histories.History | None:
        """How the training went: the recorded rows, thinned, see `zoo.release.history`; None without any."""
        return None if self.is_plain else histories.read(self.path)

    @property
    def images(self) -> dict[str, ImageList]:
        """Which images were trained ("train") and measured on ("test"), by content; empty if not listed."""
        return tensors.read_images(self.path, self.config)

    @cached_property
    def centers(self) -> Centers | None:
        """The learned class centers, or None when the objective has none."""
        return tensors.read_centers(self.path, self.config)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes of the training data, in the order of their indices."""
        return tuple(self.config.get("label_names") or self.config["zoo"]["class_names"])

    @property
    def card(self) -> str:
        """The model card, Markdown with YAML metadata."""
        return format.read_text(self.path / format.CARD)

    @property
    def preprocess(self) -> format.Preprocess:
        """How images become the encoder's input."""
        cfg = self.config["pretrained_cfg"]
        mean, std = tuple(cfg["mean"]), tuple(cfg["std"])
        return format.Preprocess(cfg["input_size"][-1], cfg["crop_pct"], cfg["interpolation"], mean, std)

    def transform(self, training: bool = False) -> Callable[[Any], Any]:
        """Return timm's transform from a PIL image of any mode to the encoder's input `[3, H, W]`.

        Modes are converted as timm and the data readers here do it; the rotation that a camera writes into a
        file (EXIF) is not applied, as in timm. The transform raises a `DataError` for what is no PIL image,
        and for grey of more than 8 bits or of fractions.

        Args:
            training: timm's own random crops, flips and colours for this input, e.g. to fine-tune with;
                they are not the views of the release's recipe.
        """
        data_config = timm.data.resolve_data_config({}, pretrained_cfg=configs.pretrained_cfg_of(self.config))
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
        if model_kwargs.get("pretrained") is True:  # a habit of timm's, and true of every release
            del model_kwargs["pretrained"]
        asked: Any = {"num_classes": num_classes, "head": head, "device": device, "dtype": dtype}
        return build(self.path, self.config, **asked, model_kwargs=model_kwargs)

    def nearest_classes(self, image: Image.Image, k: int = 5) -> list[tuple[str, float]]:
        """Return the k nearest classes of an image, by encoder and learned centers, most probable first.

        The encoder is loaded at the first call and kept as long as the release.

        Args:
            image: of PIL, in any mode.
            k: how many; all classes where there are fewer.

        Returns:
            Name and probability of each: the softmax of the centers' logits, without a class prior.

        Raises:
            ReleaseError: when the objective learned no centers, or for another k.
            DataError: for what is no PIL image, as `transform`.
        """
        centers = self.require_centers()
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ReleaseError(f"k: found {k!r}, expected 1 or more")
        with torch.no_grad():
            features = self._encoder(self.transform()(image).unsqueeze(0))
        nearest = centers.nearest(features, k)
        classes = (centers.class_names[index] for index in nearest.index[0].tolist())
        return list(zip(classes, nearest.probability[0].tolist(), strict=True))

    @cached_property
    def _encoder(self) -> nn.Module:
        return self.load().eval().requires_grad_(False)

    def require_centers(self) -> Centers:
        """Return the learned class centers, or raise an error that says what else there is."""
        if self.centers is None:
            raise ReleaseError(
                f"{self.name} has no centers: its objective {self.config['zoo']['objective']} learned none. "
                'To classify with it: "zoo evaluate knn", or learn some with "zoo finetune --init NAME"'
            )
        return self.centers

    def verify(self) -> None:
        """Compare weights, centers, recipe and images' list with the hashes in `config.json`, every byte.

        Raises:
            ReleaseError: naming the file that is missing or is not the recorded one.
        """
        for name, key in () if self.is_plain else format.HASHED.items():
            expected = self.config["zoo"].get(key)
            if expected is not None:  # a release without centers, or a list of images
                format.check_sha256(self.path / name, expected, every_byte=True)

    @property
    def writable(self) -> bool:
        """Whether evaluations can be added: a folder of the user's, neither shipped nor a download."""
        return os.access(self.path, os.W_OK) and not self._fixed

    def add_evaluation(self, entry: Mapping[str, Any]) -> None:
        """Add an evaluation to `metrics.json` and the card, in place of an equal one made before.

        Args:
            entry: `protocol`, `data`, `split`, `metrics` (name -> value; accuracies in percent) and what else
                describes it, see `checked_evaluation`. Entries are equal when protocol, data, split, settings
                and seed are.

        Raises:
            ReleaseError: when some of it is missing or of another kind, or the release cannot be changed.
        """
        checked = checked_evaluation(entry, f"an evaluation of {self.name}")
        with self._changing() as config:
            found = self.metrics
            others = [old for old in found["evaluations"] if identity(old) != identity(checked)]
            self._write(config, {**found, "evaluations": [*others, checked]})

    def add_example(self, image: Image.Image, *, credit: str) -> dict[str, float]:
        """Show on the card a small copy of an image, and the classes that the release itself finds in it.

        Args:
            image: of PIL; at most 40 KB of it are kept, as `example.png`.
            credit: whose it is and under which licence, a sentence for the card.

        Returns:
            The five most probable classes of that copy with their probabilities.

        Raises:
            ReleaseError: when the objective learned no centers, or the release cannot be changed.
            DataError: for what is no image of 8 bits.
        """
        small, png = shrunk(image, _EXAMPLE_SIDE, _EXAMPLE_BYTES)
        top = dict(self.nearest_classes(small))
        with self._changing() as config:
            metrics = format.checked_metrics(
                {**self.metrics, "example": {"credit": credit, "top": top}}, self.path / format.METRICS
            )
            write_atomic(self.path / format.EXAMPLE, lambda file: file.write_bytes(png))
            self._write(config, metrics)
        return top

    def with_license(self, license: str) -> Release:
        """Set the licence of the weights, in `config.json` and on the card; return the release opened anew.

        Of weights whose training started from others' it is warned: what those ask for holds all the same.

        Args:
            license: an identifier of the Hub's, e.g. "cc-by-4.0", or another licence's name.

        Raises:
            ReleaseError: for no name of a licence, or a release that cannot be changed.
        """
        provenance.check_license(license)
        if began := provenance.began_with(self.recipe):
            told = f"the training {began}, whose licence also applies, as the card goes on to say"
            warnings.warn(f'{self.path}: licence "{license}": {told}', ZooWarning, stacklevel=2)
        with self._changing() as config:
            changed = {**config, "pretrained_cfg": {**config["pretrained_cfg"], "license": license}}
            write_text(self.path / format.CONFIG, format.to_json(changed))
            self._write(changed)
        return Release.at(self.path)

    def render_card(self) -> str:
        """Write the card anew from what the release records, and return it; notes between its marks stay."""
        with self._changing() as config:
            self._write(config)
            return self.card

    def _write(self, config: Mapping[str, Any], metrics: Mapping[str, Any] | None = None) -> None:
        if metrics is not None:
            write_text(self.path / format.METRICS, format.to_json(metrics))
        write_text(self.path / format.CARD, card.render(self.path, config))

    @contextmanager
    def _changing(self) -> Iterator[Mapping[str, Any]]:
        """Lock the release and yield `config.json` as it is now, so that no other's changes are lost.

        Raises:
            ReleaseError: if it is shipped or a download, or cannot be written.
        """
        why = self._fixed
        if why or not is_dir(self.path):  # which the lock would make
            raise ReleaseError(f"{self.path}: {why or 'is not there any more'}. Copy it, then open the copy")
        try:
            with turn(self.path / format.LOCK):
                yield configs.read_config(self.path)
        except OSError as error:
            raise ReleaseError(f"{self.path}: cannot be changed: {error}. Copy it, then open it") from None

    @property
    def _fixed(self) -> str:
        """Why nothing in the folder may change, if so."""
        if catalog.is_shipped(self.path):
            return "a shipped release does not change"
        if self.is_plain:
            return 'a plain timm model does not change; "zoo convert" makes a release of it'
        # huggingface_hub's cache links to shared blobs
        return "a downloaded release does not change" * (self.path / format.METRICS).is_symlink()
