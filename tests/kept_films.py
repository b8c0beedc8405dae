"""Films of the tests, kept in build/films from one run to the next and for all processes of one.

Encoding them anew took a twentieth of the processor time of `make test`.
"""

import hashlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import av
import numpy as np

FOLDER: Path | None = Path(__file__).parents[1] / "build" / "films"
"""Where they are; None keeps nothing."""


def kept(maker: str, key: Sequence[object], make: Callable[[], bytes]) -> bytes:
    """Return what was made of the same key before, by the same code and libraries; else make it, and keep it.

    Args:
        maker: File of the code that makes it.
        key: All else that the bytes depend on; equal representations are the same.
    """
    if FOLDER is None:
        return make()
    path = _folder(FOLDER, Path(maker)) / hashlib.sha256(repr(key).encode()).hexdigest()
    try:
        return path.read_bytes()
    except FileNotFoundError:
        made = make()
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(made)
    Path(file.name).replace(path)
    return made


@cache
def _folder(folder: Path, maker: Path) -> Path:
    """Return the folder of what this code makes; those of its earlier versions are removed."""
    versions = (av.__version__, av.library_versions, np.__version__, platform.machine())
    version = hashlib.sha256(maker.read_bytes() + repr(versions).encode()).hexdigest()[:16]
    own = folder / f"{maker.stem}-{version}"
    if not own.is_dir():
        for earlier in folder.glob(f"{maker.stem}-*"):
            shutil.rmtree(earlier, ignore_errors=True)
        own.mkdir(parents=True, exist_ok=True)
    return own
