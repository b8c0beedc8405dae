"""The public names of ``loader``, ``curate`` and ``train`` in one place, each imported at its first use.

from reelweave import VideoStream, curate, open_dataset
"""

import functools
import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curate import *  # noqa: F403
    from loader import *  # noqa: F403
    from train import *  # noqa: F403

_ROOMS = ("loader", "curate", "train")
_ROOT = Path(__file__).resolve().parent.parent


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("reelweave")
    if name == "__all__":
        return __dir__()
    for room in _ROOMS:
        if name in (module := _room(room)).__all__:
            return getattr(module, name)
    raise AttributeError(f"module 'reelweave' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(name for room in _ROOMS for name in _room(room).__all__)


@functools.cache
def _room(name: str) -> ModuleType:
    """Import a package of ours.

    Raises:
        ImportError: a file of the same name, such as a user's own ``train.py``, comes first on ``sys.path``.
    """
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None or not Path(found.origin).resolve().is_relative_to(_ROOT / name):
        other = "nothing" if found is None else found.origin or "a folder without __init__.py"
        raise ImportError(
            f"`import {name}` finds {other} instead of Reelweave's package in {_ROOT / name};"
            f" rename that file, or start Python from another folder"
        )
    return importlib.import_module(name)
