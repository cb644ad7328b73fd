"""Another licence of a release that exists: in `config.json`, and where its description speaks of one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import ZooWarning
from zoo.release import format, licenses

STATED = " The licence is the one that the repository states."
"""In the description of a conversion for which nobody chose one; true until somebody does."""


def relicense(folder: Path, config: Mapping[str, Any], license: str) -> None:
    """Write another licence into `config.json`; a start, whose terms it cannot lift, is warned of.

    Args:
        folder: of the release.
        config: its `config.json`.
        license: as the Hub writes it, or another one's name.

    Raises:
        ReleaseError: for no name of a licence, or a folder that cannot be written.
    """
    licenses.check(license)
    licenses.warn_unlisted(license)
    recipe, old = format.read_recipe(folder), config["pretrained_cfg"]["license"]
    began = format.began_with(recipe)
    if began and license != old:
        warnings.warn(
            f'{folder}: licence "{license}" in the place of "{old}": the training {began}, and what the '
            "licence of those weights asks for holds for these, too; the card goes on to say so",
            ZooWarning,
            stacklevel=3,
        )
    about, text = config["zoo"], recipe.get("description")
    about = {**about, "description": about["description"].replace(STATED, "")}
    cfg = {**config["pretrained_cfg"], "license": license}
    changed = None
    if isinstance(text, str) and STATED in text:
        changed = {**recipe, "description": text.replace(STATED, "")}
    format.rewrite(folder, {**config, "pretrained_cfg": cfg, "zoo": about}, changed)
