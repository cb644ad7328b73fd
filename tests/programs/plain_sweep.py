"""`zoo` with pictures that cost nothing: they are most of a short run's time, and tested elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zoo.api.diagnosis
import zoo.api.pretraining
from zoo import catalog
from zoo.cli import main

PACO = "cifar_resnet20.paco_digits_lt50"


def draw_nothing(*arguments: Any, **_: Any) -> None:
    """Write some picture where one is asked for."""
    path = catalog.release_path(PACO)
    assert path is not None
    picture = next(path.glob("*.png")).read_bytes()
    next(each for each in arguments if isinstance(each, Path)).write_bytes(picture)


for name in ("plot_features", "plot_class_map", "plot_curves"):
    setattr(zoo.api.pretraining, name, draw_nothing)
setattr(zoo.api.diagnosis, "draw", lambda *_: [])  # noqa: B010

if __name__ == "__main__":
    main()
