"""Registers this project's architectures with timm as soon as timm is imported, without importing it.

`import zoo` must not import torch, yet `timm.create_model("cifar_resnet20")` must work after it. So the
registration is deferred to the end of timm's own import, before whoever imports timm can use it.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ARCHITECTURES = "zoo.backbones"  # importing it registers them


class _AfterTimm(MetaPathFinder):
    """Finds timm through the other finders and appends the registration to its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "timm":
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        spec = next((s for finder in others if (s := finder.find_spec(fullname, path, target))), None)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        run_module = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            if self in sys.meta_path:  # already removed on importlib.reload(timm)
                sys.meta_path.remove(self)
            importlib.import_module(_ARCHITECTURES)

        # Patched on the instance: the module keeps its real loader, which tools that read its files rely on.
        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_architectures() -> None:
    """Register now if timm is already imported, otherwise when it is first imported."""
    if "timm" in sys.modules:
        importlib.import_module(_ARCHITECTURES)
    elif not any(isinstance(finder, _AfterTimm) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTimm())
