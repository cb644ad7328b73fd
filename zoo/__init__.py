"""contrastive-zoo: pretrained contrastive encoders to load, reproduce, publish and fine-tune.

Importing this package imports neither torch nor timm: the names in `__init__.pyi` are loaded on first use.
"""

from typing import Any

import lazy_loader

from zoo import _timm_hook
from zoo.errors import missing_extra

_fetch, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in _names if name != "open"]  # `import *` would shadow the builtin


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slower to import than everything else here

        return version("contrastive-zoo")
    try:
        return _fetch(name)
    except ModuleNotFoundError as error:
        raise missing_extra(error) from error


def __dir__() -> list[str]:
    return ["__version__", *_names]


_timm_hook.register_architectures()
