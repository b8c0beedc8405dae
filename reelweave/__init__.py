"""The public names of ``loader``, ``curate`` and ``train`` in one place, each imported at its first use.

from reelweave import VideoStream, curate, open_dataset
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reelweave.curate import *  # noqa: F403
    from reelweave.loader import *  # noqa: F403
    from reelweave.train import *  # noqa: F403

_PACKAGES = ("loader", "curate", "train")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("reelweave")
    if name == "__all__":
        return __dir__()
    # Also `curate`, whose package calls the function of its name: one meaning before and after its import.
    if name in _PACKAGES:
        return importlib.import_module(f"reelweave.{name}")
    for package in _PACKAGES:
        if name in (module := importlib.import_module(f"reelweave.{package}")).__all__:
            return getattr(module, name)
    raise AttributeError(f"module 'reelweave' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(
        {name for package in _PACKAGES for name in importlib.import_module(f"reelweave.{package}").__all__}
    )
