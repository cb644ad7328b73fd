"""Changes to bytes, texts and plain values; all take their choices from a `Random`."""

from __future__ import annotations

import copy
import json
import math
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import yaml

CANARY_VARIABLE = "ZOO_FUZZ_CANARY"  # a payload that runs sets it

BOUNDS = (0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63)
WORDS = (
    *(
        "",
        " ",
        "None",
        "null",
        "true",
        "no",
        "~",
        "nan",
        ".nan",
        ".inf",
        "-inf",
        "1e5",
        "1e-5",
        "0x10",
        "1_000",
    ),
    *("0", "-1", "010", "1.", ".5", "1:30", "2020-01-01", "=", "<<", "*", "&a", "!!str", "@", "`", "%", "\t"),
    *("\0", "\x1b[2J\x1b]0;owned\x07", "\r\n", "\x85", "\u2028", "\u202etxt.exe", "\ufeff", "e\u0301", "𝟘٣"),
    *(
        "a" * 10_000,
        "../../etc/passwd",
        "/dev/zero",
        "/etc/passwd",
        "~root",
        "%s%n",
        "{0}",
        "${HOME}",
        "$(id)",
    ),
    *("ß" * 300, "x\ny", "-", "[", "{", "}", "]", "'", '"', "\\", "|", ">", "#", "?", ":", ",", "\ud800"),
)


def value(random: Random) -> Any:
    """Return a plain value that stands where it should not."""
    kind = random.randrange(8)
    if kind == 0:
        return random.choice((None, True, False))
    if kind == 1:
        return random.choice(BOUNDS) * random.choice((1, -1))
    if kind == 2:
        return random.choice((10**400, -(10**30), 1e308, -1e308, 5e-324, -0.0, math.nan, math.inf, 0.5, 1.0))
    if kind == 3:
        return random.choice(WORDS)
    if kind == 4:
        return random.choice(
            ([], {}, [[]], [None], {"": None}, {"a": {}}, [0] * 300, ["x"] * 9, [{}], {"a": [1]})
        )
    if kind == 5:
        return [value(random) for _ in range(random.randrange(4))]
    if kind == 6:
        return {random.choice(WORDS): value(random) for _ in range(random.randrange(4))}
    return nested(random)


def nested(random: Random) -> Any:
    """Return lists or sections inside each other."""
    made: Any = random.choice((0, None, "x"))
    for _ in range(random.choice((3, 17, 33, 80))):
        made = [made] if random.random() < 0.5 else {"a": made}
    return made


def _near(old: Any, random: Random) -> Any:
    """Return a value of the same type: what a slip of the hand or a damaged bit makes of it."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return random.choice(
            (old + 1, old - 1, -old, old * 1000, 0, old << 40, float(old), str(old), old ^ 1)
        )
    if isinstance(old, float):
        whole = int(old) if math.isfinite(old) else 0  # a slip before may have left nan
        return random.choice((-old, old * 1e9, old / 1e9, 0.0, 1.0, str(old), math.nan, whole, 2 * old))
    if isinstance(old, str):
        place = random.randrange(len(old) + 1)
        return random.choice(
            (
                old[:place],
                old[:place] + random.choice(WORDS) + old[place:],
                old.upper(),
                old + old,
                old[::-1],
                [old],
            )
        )
    if isinstance(old, list):
        return random.choice(
            (old[:-1], old + old, old[::-1], [old], dict(enumerate(map(str, old))), [*old, None])
        )
    return value(random)


def tree(random: Random, data: Any) -> tuple[Any, str]:
    """Change a copy of nested plain `data` in one to three places; say where."""
    data, notes = copy.deepcopy(data), []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        path = random.choice(list(_paths(data)) or [()])
        if not path:
            return value(random), "the whole"
        parent = data
        for key in path[:-1]:
            parent = parent[key]
        notes.append(f"{'.'.join(map(str, path))[:80]}: {_change(random, parent, path[-1])}")
    return data, "; ".join(notes)


def _change(random: Random, parent: Any, key: Any) -> str:
    action = random.choice(("value", "value", "near", "near", "remove", "twice", "rename", "add", "copy"))
    if action == "value":
        parent[key] = value(random)
    elif action == "near":
        parent[key] = _near(parent[key], random)
    elif action == "remove":
        del parent[key]
    elif action == "twice":
        if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        else:
            parent[f"{key}2"] = copy.deepcopy(parent[key])
    elif action == "rename" and isinstance(parent, dict):
        parent[str(_near(key, random))] = parent.pop(key)
    elif action == "copy":  # from another place of the tree
        others = list(parent.values() if isinstance(parent, dict) else parent)
        parent[key] = copy.deepcopy(random.choice(others))
    elif isinstance(parent, dict):
        parent[random.choice(WORDS)] = value(random)
    else:
        parent.append(value(random))
    return action


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = [path] if path else []
    for key, item in items:
        found += _paths(item, (*path, key))
    return found


def octets(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Change bytes in one to four places."""
    for _ in range(random.choice((1, 1, 2, 4))):
        data = random.choice(_OCTETS)(random, data, others)
    return data


def _flip(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 3, 16))):
        if made:
            made[_place(random, made)] ^= 1 << random.randrange(8)
    return bytes(made)


def _place(random: Random, data: bytes | bytearray) -> int:
    """Choose a place, headers and trailers more often than what is between."""
    bound = random.choice((16, 64, 512, len(data)))
    place = random.randrange(min(bound, len(data)))
    return place if random.random() < 0.7 else len(data) - 1 - place


def _number(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    form = random.choice("bhiq")
    size = struct.calcsize(form)
    if len(data) < size:
        return data
    at = min(_place(random, data), len(data) - size)
    wrapped = random.choice(BOUNDS) % (1 << (8 * size))
    return data[:at] + wrapped.to_bytes(size, random.choice(("little", "big"))) + data[at + size :]


def _cut(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)] if random.random() < 0.8 else b""


def _remove(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice((1, 4, 64, 1000)) :]


def _repeat(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, size = random.randrange(len(data) + 1), random.choice((1, 8, 100, 5000))
    return data[:at] + data[at : at + size] * random.choice((2, 2, 50)) + data[at + size :]


def _splice(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others) if others else data[::-1]
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _insert(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    word = (
        random.choice(WORDS).encode("utf-8", "surrogatepass")
        if random.random() < 0.5
        else random.randbytes(8)
    )
    return data[:at] + word + data[at:]


_OCTETS: tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...] = (
    *(_flip, _flip, _number, _number, _cut, _remove, _repeat, _splice, _insert),
)

_YAML_LINES = (
    *(
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
        "<<: {a: 1}",
        "<<: 3",
        "? [a]\n: b",
        "? {a: b}\n: c",
        "%YAML 9.9",
    ),
    *("--- a", "...", "\tx: 1", "!!python/object/apply:os.putenv [ZOO_FUZZ_CANARY, '1']", "a: !!timestamp x"),
    *(
        "a: !!python/object/new:os.system ['false']",
        "a: !!binary //8=",
        "a: !!set {x}",
        "a: !!bool x",
        "a: !!int x",
    ),
    *(
        "a: !!omap [x: 1]",
        "a: !!float x",
        "a: !!null x",
        "a: !!timestamp 2020-13-45",
        "a: !<tag:x> y",
        "a: !x y",
    ),
    *(
        "{" * 5000,
        "[" * 40,
        "- " * 3000,
        "a: " * 500,
        '"\\ud800": 1',
        '"\\x00": "\\x1b"',
        "a: |\n  x\n y",
        "{a: 1,",
    ),
    *(
        "? " * 2000,
        "# x\r# y\r",
        "a: 'it''s",
        "key: @x",
        "null: 1",
        "~: 1",
        "1: 2",
        "true: x",
        "1.5: x",
        "'': x",
    ),
)


def text(random: Random, given: str, lines: Sequence[str] = _YAML_LINES) -> bytes:
    """Change lines of a text, or how it is written."""
    rows = given.split("\n")
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(rows) + 1)
        action = random.randrange(6)
        if action == 0:
            rows[at : at + 1] = []
        elif action == 1:
            rows[at:at] = rows[at : at + random.choice((1, 1, 5))]
        elif action == 2:
            rows[at:at] = [" " * random.choice((0, 0, 2, 4)) + random.choice((*lines, *WORDS))]
        elif action == 3 and at < len(rows):
            rows[at] = rows[at].replace(random.choice((":", ",", " ", ".", "0", "1")), random.choice(WORDS))
        elif action == 4 and at < len(rows):
            rows[at] = random.choice((" " * random.randrange(9), "\t", "- ", "'")) + rows[at].lstrip()
        else:
            other = random.randrange(len(rows) or 1)
            rows[at:at], rows[other : other + 1] = rows[other : other + 1], []
    made = "\n".join(rows)
    way = random.randrange(12)
    if way == 0:
        return made.replace("\n", "\r\n").encode("utf-8", "surrogatepass")
    if way == 1:
        return made.encode("utf-8-sig", "surrogatepass")
    if way == 2:
        return made.encode(random.choice(("utf-16", "utf-32", "utf-7")), "replace")
    if way == 3:
        return made.encode("latin-1", "replace")
    return made.encode("utf-8", "surrogatepass")


def to_yaml(random: Random, data: Any) -> bytes:
    """Write plain values as YAML of one of its styles."""
    flow = random.choice((None, None, False, True))
    written = yaml.dump(data, default_flow_style=flow, allow_unicode=random.random() < 0.5, sort_keys=False)
    return str(written).encode("utf-8", "surrogatepass")


def to_json(random: Random, data: Any) -> bytes:
    """Write plain values as JSON, sometimes with a key twice."""
    made = json.dumps(data, ensure_ascii=random.random() < 0.5, indent=random.choice((None, 2)))
    if random.random() < 0.05 and '": ' in made:
        at = made.index('": ')
        begin = made.rindex('"', 0, at)
        made = f'{made[:begin]}{made[begin:at]}": 1, {made[begin:]}'
    return made.encode("utf-8", "surrogatepass")
