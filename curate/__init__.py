"""Curation of raw videos into clips and shards: one module per stage, each a plain callable that works without Ray.

The public names are listed in ``__init__.pyi`` and imported at their first use.
"""

import sys
from types import ModuleType
from typing import Any

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Package(ModuleType):
    """The package, which `reelweave` also offers as the function of the same name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the package's function `curate`."""
        return self.curate(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
