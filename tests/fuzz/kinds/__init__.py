"""Every kind of file that a user can hand us, by name."""

from __future__ import annotations

from tests.fuzz.case import Kind
from tests.fuzz.kinds.checkpoints import archives, legacy, safetensors
from tests.fuzz.kinds.decoded import decoded
from tests.fuzz.kinds.hub import hub
from tests.fuzz.kinds.images import images
from tests.fuzz.kinds.lists import candidates, counts, lists
from tests.fuzz.kinds.parquet import parquet
from tests.fuzz.kinds.recipes import built, overrides, recipes
from tests.fuzz.kinds.releases import cards, histories, releases, weights
from tests.fuzz.kinds.runs import runs
from tests.fuzz.kinds.specs import specs

KINDS: dict[str, Kind] = {
    "recipe": recipes,
    "override": overrides,
    "built": built,
    "list": lists,
    "counts": counts,
    "candidates": candidates,
    "image": images,
    "parquet": parquet,
    "release": releases,
    "history": histories,
    "weights": weights,
    "card": cards,
    "checkpoint": archives,
    "legacy": legacy,
    "safetensors": safetensors,
    "run": runs,
    "spec": specs,
    "decoded": decoded,
    "hub": hub,
}
