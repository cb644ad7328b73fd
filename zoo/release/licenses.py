"""The licences that the Hub lists by an identifier, and what a card's metadata say of another one.

The Hub refuses a card whose `license` is none of its identifiers: any other licence is `other` there, with a
name of its own. The list is that of https://huggingface.co/docs/hub/repositories-licenses as of June 2026,
with openmdw-1.1 as its newest. A later one is written as `other` with its identifier as the name.
"""

from __future__ import annotations

import re
import warnings

from zoo.errors import ReleaseError, ZooWarning, did_you_mean

_LONGEST = 200  # characters; names, not texts

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
IDENTIFIERS = frozenset(_LISTED.split())


def on_hub(license: str) -> tuple[str, str | None]:
    """Return what a card's metadata say of a licence: `license`, and `license_name` where none is listed.

    Another spelling of an identifier is that identifier: "CC BY 4.0" is `cc-by-4.0`, "MIT License" is `mit`.
    Signs with a meaning, such as the + of "GPL-3.0+", make another licence.
    """
    if license.lower() in IDENTIFIERS:
        return license.lower(), None
    spelling = _slug(re.sub(r"(?i)\blicen[cs]e\b", " ", license))
    if spelling in IDENTIFIERS and spelling != "other" and re.fullmatch(r"[\w. -]*", license, re.ASCII):
        return spelling, None
    return "other", _slug(license)


def check(license: object, where: str = "licence") -> None:
    """Make sure that a card can name a licence.

    Raises:
        ReleaseError: beginning with `where`.
    """
    is_name = isinstance(license, str) and license.isprintable() and len(license) <= _LONGEST
    if not is_name or not _slug(str(license)):
        shown = str(license) if len(str(license)) <= _LONGEST else f"{str(license)[:_LONGEST]} ..."
        raise ReleaseError(
            f"{where}: found {shown!r}, expected an identifier of the Hub's such as cc-by-4.0, or the "
            f"licence's name: letters or digits in one line, at most {_LONGEST} characters"
        )


def warn_unlisted(license: str) -> None:
    """Warn of a licence that the Hub does not list where it may be a slip for one that it does."""
    if on_hub(license)[0] == "other" and (near := did_you_mean(license, sorted(IDENTIFIERS))):
        warnings.warn(
            f'licence "{license}" is none of the Hub\'s identifiers, and is written as "other" with that '
            f"name.{near}",
            ZooWarning,
            stacklevel=2,
        )


def _slug(text: str) -> str:
    """Return a text as the Hub takes names: lower-case letters, digits, "." and "-"."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower().replace("+", "-plus ")).strip("-.")
