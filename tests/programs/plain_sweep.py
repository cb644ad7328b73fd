"""`zoo` with pictures that cost nothing: they are most of a short run's time, and tested elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zoo.api.finishing
from zoo import catalog
from zoo.cli import main

PACO = "cifar_resnet20.paco_digits_lt50"


def draw_nothing(*arguments: Any, **_: Any) -> dict[str, Path]:
    """Put some picture in the place of `draw_pictures`'s."""
    path = catalog.release_path(PACO)
    assert path is not None
    folder = next(each for each in arguments if isinstance(each, Path))
    (folder / "features.png").write_bytes(next(path.glob("*.png")).read_bytes())
    return {"features": folder / "features.png"}


if __name__ == "__main__":
    zoo.api.finishing.draw_pictures = draw_nothing
    main()
