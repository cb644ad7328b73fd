"""contrastive-zoo: pretrained contrastive encoders to load, reproduce, publish and fine-tune.

Importing this package imports neither torch nor timm: every name but `ZooError` is fetched when it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zoo import _timm_hook
from zoo.errors import ZooError, missing_extra

if TYPE_CHECKING:
    from zoo.catalog import list_models, list_recipes, list_sweeps
    from zoo.conversion.convert import convert
    from zoo.conversion.export import export
    from zoo.evaluation.embed import Embedding, embed
    from zoo.evaluation.evaluate import evaluate
    from zoo.evaluation.predict import Prediction, predict
    from zoo.experiments.compare import compare
    from zoo.experiments.reproduce import Reproduction, reproduce
    from zoo.experiments.sweep import Sweep, sweep
    from zoo.experiments.table import Results, table
    from zoo.hub import load
    from zoo.hub import open as open
    from zoo.hub.fetch import pull
    from zoo.hub.push import push
    from zoo.modules.centers import Centers
    from zoo.objectives import register_objective
    from zoo.pretraining import finetune, pretrain, snapshot
    from zoo.release import Release
    from zoo.report.diagnose import Report, diagnose

__all__ = [  # without `open`: a star would put it in the place of the builtin
    "Centers", "Embedding", "Prediction", "Release", "Report", "Reproduction", "Results",
    "Sweep", "ZooError", "compare", "convert", "diagnose", "embed", "evaluate", "export", "finetune",
    "list_models", "list_recipes", "list_sweeps", "load", "predict", "pretrain", "pull", "push",
    "register_objective", "reproduce", "snapshot", "sweep", "table",
]  # fmt: skip

_MODULES = {
    "zoo.pretraining": ("finetune", "pretrain", "snapshot"),
    "zoo.catalog": ("list_models", "list_recipes", "list_sweeps"),
    "zoo.conversion.convert": ("convert",),
    "zoo.conversion.export": ("export",),
    "zoo.evaluation.embed": ("Embedding", "embed"),
    "zoo.evaluation.evaluate": ("evaluate",),
    "zoo.evaluation.predict": ("Prediction", "predict"),
    "zoo.experiments.compare": ("compare",),
    "zoo.experiments.reproduce": ("Reproduction", "reproduce"),
    "zoo.experiments.sweep": ("Sweep", "sweep"),
    "zoo.experiments.table": ("Results", "table"),
    "zoo.hub.fetch": ("load", "open", "pull"),
    "zoo.hub.push": ("push",),
    "zoo.modules.centers": ("Centers",),
    "zoo.objectives": ("register_objective",),
    "zoo.release": ("Release",),
    "zoo.report.diagnose": ("Report", "diagnose"),
}
_SUBMODULES = frozenset(
    {
        *("backbones", "catalog", "config", "conversion", "data", "evaluation", "experiments", "functional"),
        *("hub", "modules", "objectives", "pretraining", "release", "training"),
    }
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # which takes longer than all of the rest

        return version("contrastive-zoo")
    if name in _SUBMODULES:
        return importlib.import_module(f"zoo.{name}")
    for module, names in _MODULES.items():
        if name in names:
            try:
                globals()[name] = value = getattr(importlib.import_module(module), name)  # found once
            except ModuleNotFoundError as error:
                raise missing_extra(error) from error
            return value
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    dunders = {name for name in globals() if name.startswith("__")}
    return sorted({*dunders, *__all__, "open", *_SUBMODULES})


_timm_hook.register_architectures()
