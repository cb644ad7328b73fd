"""What to cite, from `citations.bib` beside this file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_OF_OBJECTIVE = {
    "bcl": ("zhu2022bcl",),
    "moco": ("he2020moco", "chen2020mocov2"),
    "moco_v3": ("chen2021mocov3",),
    "simclr": ("chen2020simclr",),
    "sup_con": ("khosla2020supcon", "he2020moco"),
    "paco": ("cui2021paco",),
    "gpaco": ("cui2022gpaco",),
    "pico": ("wang2022pico",),
    "margin": ("hadsell2006margin",),
}

CONTRASTIVE = frozenset(_OF_OBJECTIVE)
"""Objectives that compare images with each other."""

_OF_LONG_TAIL = {
    "balanced_softmax": "ren2020balanced",
    "logit_adjustment": "menon2021logit",
    "post_hoc_logit_adjustment": "menon2021logit",
    "ldam": "cao2019ldam",
    "ldam_drw": "cao2019ldam",
    "crt": "kang2020decoupling",
    "tau_normalized": "kang2020decoupling",
    "lws": "kang2020decoupling",
}
"""By the name of a loss or a method."""


def bibtex(objective: str, recipe: Mapping[str, Any]) -> str:
    """Return the BibTeX entries of the methods that a recipe uses, or '' when it uses none with a paper."""
    settings = recipe.get("objective")
    settings = settings if isinstance(settings, Mapping) else {}
    keys = list(_OF_OBJECTIVE.get(objective, ()))
    if settings.get("feature_transform"):
        keys.append("zhu2021ft")
    if settings.get("distill"):
        keys.append("hinton2015distillation")
    loss = settings.get("loss")
    name = loss.get("name") if isinstance(loss, Mapping) else loss
    if name in ("hard_contrastive", "simple", "hard_simple"):
        keys.append("wang2021behaviour")
    method = recipe.get("method")
    used = (name, method.get("name") if isinstance(method, Mapping) else None)
    keys += [key for word, key in _OF_LONG_TAIL.items() if word in used]
    text = files(__package__).joinpath("citations.bib").read_text(encoding="utf-8")
    entries = {
        found[1]: found[0] for found in re.finditer(r"@\w+\{(\w+),.*?^\}", text, re.DOTALL | re.MULTILINE)
    }
    return "\n\n".join(entries[key] for key in keys)
