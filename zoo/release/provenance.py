"""What a release's weights come from: the releases its training began with, their names and the licence."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import ReleaseError, is_printable
from zoo.files import is_dir
from zoo.release import format

START, TEACHERS = "init.release", "objective.distill.teachers"

# The Hub refuses a card whose `license` is none of these; any other one is `other` there, with its own name.
# https://huggingface.co/docs/hub/repositories-licenses as of June 2026, with openmdw-1.1 as its newest.
_LISTED = """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
    bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda
    cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0
    cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
    cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
    eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research
    lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openmdw-1.1 openrail++ osl-3.0
    postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
    fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma
    unknown other
"""
LICENSES = frozenset(_LISTED.split())


def check_license(license: object, where: str = "licence") -> None:
    """Make sure that a card can name a licence.

    Raises:
        ReleaseError: beginning with `where`.
    """
    text = license if isinstance(license, str) else ""
    if not _slug(text) or not is_printable(text) or len(text) > 200:  # a name, not the text
        raise ReleaseError(
            f"{where}: found {license!r:.200}, expected an identifier of the Hub's such as cc-by-4.0, or the "
            "licence's name: letters or digits in one line, at most 200 characters"
        )


def license_on_hub(license: str) -> tuple[str, str | None]:
    """Return what a card's metadata say of a licence: `license`, and `license_name` where none is listed."""
    return (license.lower(), None) if license.lower() in LICENSES else ("other", _slug(license))


def _slug(text: str) -> str:
    """Return a text as the Hub takes names: lower-case letters, digits, "." and "-"."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower().replace("+", "-plus ")).strip("-.")


def inherited_license(licenses: Iterable[str]) -> str:
    """Return the licence of weights that were trained from, or distilled from, weights with these licences.

    They keep a foreign one; of several that differ it is "other", and the card names them all.
    """
    others = [license for license in dict.fromkeys(licenses) if license != format.LICENSE]
    return format.LICENSE if not others else others[0] if len(others) == 1 else "other"


def start_of(recipe: Mapping[str, Any]) -> str | None:
    """Return what a recipe's training started from; None for random weights, and of a conversion."""
    start = (recipe.get("init") or {}).get("release")
    return start if isinstance(start, str) else None


def teachers_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the releases that a recipe's student learns from beside the labels, in its order."""
    distill = (recipe.get("objective") or {}).get("distill")
    teachers = distill.get("teachers") if isinstance(distill, Mapping) else None
    return [name for name in teachers if isinstance(name, str)] if isinstance(teachers, list) else []


def began_with(recipe: Mapping[str, Any]) -> str:
    """Say what a recipe's training started and learned from; '' where that is random weights and labels."""
    start, teachers = start_of(recipe), teachers_of(recipe)
    words = [] if start is None else [f'started from "{start}"']
    if teachers:
        words.append("learned from " + ", ".join(f'"{name}"' for name in teachers))
    return " and ".join(words)


class Origin(NamedTuple):
    """A release that a training began with.

    Attributes:
        key: of the recipe, where it is named.
        name: as it is written there.
        sha256: recorded by the training, of the start's weights or of a teacher (`teacher_sha256`); None
            where it is not.
    """

    key: str
    name: str
    sha256: str | None


def origins(recipe: Mapping[str, Any], training: Mapping[str, Any], where: object) -> list[Origin]:
    """Return what a training started from, unless that is random or timm's weights, and its teachers.

    Args:
        recipe: plain.
        training: the section of metrics.json.
        where: the release, for errors.

    Raises:
        ReleaseError: for a record of other teachers than the recipe names.
    """
    start, teachers = start_of(recipe), teachers_of(recipe)
    recorded = training.get("teacher_sha256") or [None] * len(teachers)
    if not isinstance(recorded, list) or len(recorded) != len(teachers):
        raise ReleaseError(
            f"{where}: {format.METRICS}: training.teacher_sha256: found {recorded!r}, expected one of each "
            f"of the {len(teachers)} teachers in {format.RECIPE}"
        )
    first = [] if start is None else [Origin(START, start, training.get("init_weights_sha256"))]
    rows = enumerate(zip(teachers, recorded, strict=True))
    return first + [Origin(f"{TEACHERS}.{i}", name, sha256) for i, (name, sha256) in rows]


def sha256_of(key: str, config: Mapping[str, Any]) -> str:
    """Return what a training records of a release with this `config.json` that it has under `key`."""
    return str(config["zoo"]["weights_sha256"]) if key == START else teacher_sha256(config)


def teacher_sha256(config: Mapping[str, Any]) -> str:
    """Hash all that decides what a release says of an image: encoder, centers, and what pixels become."""
    zoo, pixels = config["zoo"], config["pretrained_cfg"]
    parts = [zoo["weights_sha256"], zoo["centers_sha256"], [*pixels["mean"]], [*pixels["std"]]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check_public(folder: Path) -> None:
    """Make sure that no path of this machine is published as what the training began with.

    Raises:
        ReleaseError: naming each, and how the recipe gets a name that others can read.
    """
    recipe = format.read_recipe(folder)
    began = [each for each in origins(recipe, {}, folder) if _is_folder(each.name)]
    private = [f'{each.key} is the folder "{each.name}"' for each in began]
    if private:
        raise ReleaseError(
            f"{folder / format.RECIPE}: {', '.join(private)}: others cannot read it, and its path would be "
            "published. Push that release first, then this one with --start ORG/NAME, which then stands in "
            "the recipe"
        )


def rename(folder: Path, config: Mapping[str, Any], new: str, other: Mapping[str, Any]) -> None:
    """Write another name of the start, or of a teacher, into the recipe, which is the same in all else.

    Args:
        folder: of the release.
        config: its `config.json`.
        new: the other name, which can mean nothing else (`ModelRef.spelling`).
        other: the `config.json` that bears it: its hashes tell what is renamed.

    Raises:
        ReleaseError: for another folder, or weights that are not those that the training began with.
    """
    recipe, where = format.read_recipe(folder), folder / format.RECIPE
    if _is_folder(new):
        raise ReleaseError(f'{where}: found the folder "{new}", expected what others can read: ORG/NAME')
    own = origins(recipe, format.read_metrics(folder)["training"], folder)
    same = [each for each in own if each.sha256 == sha256_of(each.key, other)]
    if not same:
        known = (
            "; ".join(f'{each.key}: "{each.name}", sha256 {each.sha256}' for each in own) or "random weights"
        )
        raise ReleaseError(f'{where}: the training began with {known}, and nothing of it is "{new}"')
    # where what bears the name is in a folder and has a public name besides, the folder alone is renamed
    olds = [each.name for each in [each for each in same if _is_folder(each.name)] or same]

    either = "|".join(re.escape(old) for old in sorted(olds, key=len, reverse=True))
    by_itself = re.compile(rf"(?<![\w./-])(?:{either})(?!\.?[\w/-])")
    changed = dict(recipe)
    if "description" in recipe:
        changed["description"] = by_itself.sub(lambda _: new, str(recipe["description"]))
    if start_of(recipe) in olds:
        changed["init"] = {**recipe["init"], "release": new}
    if teachers := teachers_of(recipe):
        names = [new if name in olds else name for name in teachers]
        distill = {**recipe["objective"]["distill"], "teachers": names}
        changed["objective"] = {**recipe["objective"], "distill": distill}
    zoo = {**config["zoo"], "description": by_itself.sub(lambda _: new, config["zoo"]["description"])}
    format.rewrite(folder, {**config, "zoo": zoo}, changed)


def _is_folder(name: str) -> bool:
    return name.startswith(("/", "~", "./", "../")) or is_dir(name)
