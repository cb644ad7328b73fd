"""What rebuilding must not change: the values of every recipe, the rows of long tails, the shipped weights.

After a change that is meant to move them: `python -m tests.test_golden` writes the files anew; say why in the
commit. The recipes' file holds the most common value of each key, and for each recipe only what differs.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import zoo
from zoo import catalog
from zoo.data.config import LongTail
from zoo.data.long_tail import select_long_tail
from zoo.recipe import Recipe

FOLDER = Path(__file__).with_name("golden")
PROFILES = [(*each, imbalance) for each in ((100, 500), (10, 5000)) for imbalance in (10, 50, 100)]


def leaves(plain: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(plain, Mapping) or not plain:
        return [(path, plain)]
    return [leaf for key in plain for leaf in leaves(plain[key], f"{path}.{key}" if path else str(key))]


def values(name: str) -> dict[str, Any]:
    found = dict(leaves(Recipe.load(name).model_dump(mode="json")))
    del found["description"], found["name"]
    return found


def most_common(recipes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for recipe in recipes.values():
        for key, value in recipe.items():
            counts[key][json.dumps(value, sort_keys=True)] += 1
    most = {key: count.most_common(1)[0] for key, count in sorted(counts.items())}
    return {key: json.loads(value) for key, (value, times) in most.items() if 2 * times > len(recipes)}


def read(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


def tail(classes: int, images: int, imbalance: int) -> str:
    labels = np.random.RandomState(0).permutation(np.repeat(np.arange(classes), images))
    kept = select_long_tail(LongTail(imbalance=float(imbalance)), labels, classes)
    return hashlib.sha256(np.ascontiguousarray(kept, dtype="<i8").tobytes()).hexdigest()


def weights(name: str) -> str:
    """Return the SHA-256 of a loaded encoder's names, shapes and bits."""
    digest = hashlib.sha256()
    for key, tensor in sorted(zoo.load(name).state_dict().items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def test_recipes_have_the_values_of_before() -> None:
    stored = read("recipes.json")
    for name, own in stored["differences"].items():
        common = {key: value for key, value in stored["common"].items() if key not in own["without"]}
        assert values(name) == common | own["with"], name


def test_the_long_tails_of_cifar_keep_the_same_images() -> None:
    assert {str(each): tail(*each) for each in PROFILES} == read("tails.json")


def test_shipped_releases_load_the_same_bits() -> None:
    stored = read("weights.json")
    assert {name: weights(name) for name in stored} == stored


def lines(value: Any, depth: int = 0) -> str:
    """Return JSON with one line for each value, and lists within their line, to read and to compare."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = ",\n".join(
        f"{' ' * (depth + 1)}{json.dumps(key)}: {lines(value[key], depth + 1)}" for key in sorted(value)
    )
    return f"{{\n{inner}\n{' ' * depth}}}"


def main() -> None:
    recipes = {name: values(name) for name in catalog.list_recipes()}
    common = most_common(recipes)
    differences = {
        name: {
            "with": {key: value for key, value in own.items() if key not in common or common[key] != value},
            "without": [key for key in common if key not in own],
        }
        for name, own in recipes.items()
    }
    for name, found in (
        ("recipes.json", {"common": common, "differences": differences}),
        ("tails.json", {str(each): tail(*each) for each in PROFILES}),
        ("weights.json", {name: weights(name) for name in zoo.list_models()}),
    ):
        (FOLDER / name).write_text(lines(found) + "\n")


if __name__ == "__main__":
    main()
