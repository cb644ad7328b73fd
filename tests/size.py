"""The size of each room of the house against its limit: `python -m tests.size`; status 1 where one is over.

Lines count with docstrings, comments and blanks. A limit may be lowered, and what is new has to fit.
"""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "functional": 1000, "modules": 650, "backbones": 350, "objectives": 1250, "data": 2300, "recipe": 800,
    "training": 2200, "evaluation": 1500, "release": 1600, "hub": 600, "convert": 800, "experiments": 1200,
    "report": 1300, "cli": 750, "top level": 700,
}  # fmt: skip


def lines(path: Path) -> int:
    """Count the lines of a text."""
    return len(path.read_text(encoding="utf-8").splitlines())


def sizes() -> list[tuple[str, int, int]]:
    """Return what is limited, its size, its limit."""
    code = {p: lines(p) for p in (ROOT / "zoo").rglob("*") if p.suffix in {".py", ".j2", ".css"}}
    rooms = Counter[str]()
    for path, count in code.items():
        folder = path.relative_to(ROOT / "zoo").parts
        rooms[folder[0] if len(folder) > 1 else "top level"] += count
    rows = [(room, rooms[room], ROOMS.get(room, 0)) for room in sorted(rooms | Counter(ROOMS))]
    rows += [("zoo/ in all", sum(code.values()), 17_000), ("files of zoo/", len(code), 130)]
    rows += [("longest file of zoo/", max(code.values()), 400)]
    rows += [("tests/ in all", sum(map(lines, (ROOT / "tests").rglob("*.py"))), 16_000)]
    rows += [("README.md, bytes", (ROOT / "README.md").stat().st_size, 16_000)]
    rows += [("longest recipe", max(map(lines, (ROOT / "recipes").glob("*.yaml"))), 45)]
    return rows


if __name__ == "__main__":
    for name, found, limit in sizes():
        print(f"{name:<22}{found:>8,} of {limit:>7,}{'   over' if found > limit else ''}")
    sys.exit(any(found > limit for _, found, limit in sizes()))
