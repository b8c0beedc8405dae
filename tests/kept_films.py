"""Films of the tests, kept in build/films from one run to the next and for all processes of one.

Encoding them anew took a twentieth of the processor time of `make test`.
"""

import hashlib
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import av
import numpy as np

FOLDER: Path | None = Path(__file__).parents[1] / "build" / "films"
"""Where they are; None keeps nothing."""


class Films:
    """What the code of a module makes; what earlier versions of it made is removed.

    Args:
        maker: File of the module, which makes one while it is imported, so that the file is what runs.
    """

    def __init__(self, maker: str) -> None:
        code = Path(maker)
        versions = (av.__version__, av.library_versions, np.__version__, platform.machine())
        self._name = code.stem
        self._version = hashlib.sha256(code.read_bytes() + repr(versions).encode()).hexdigest()[:16]

    def kept(self, key: Sequence[object], make: Callable[[], bytes]) -> bytes:
        """Return what was made of the same key before; else make it, and keep it.

        Args:
            key: All that the bytes depend on beside code and libraries; equal representations are the same.
        """
        if FOLDER is None:
            return make()
        path = self._folder(FOLDER) / hashlib.sha256(repr(key).encode()).hexdigest()
        try:
            return path.read_bytes()
        except FileNotFoundError:
            made = make()
        # Another version that runs beside this one may have removed the folder meanwhile.
        with tempfile.NamedTemporaryFile(dir=self._folder(FOLDER), delete=False) as file:
            file.write(made)
        Path(file.name).replace(path)
        return made

    def _folder(self, films: Path) -> Path:
        own = films / f"{self._name}-{self._version}"
        if not own.is_dir():
            for earlier in films.glob(f"{self._name}-*"):
                shutil.rmtree(earlier, ignore_errors=True)
            own.mkdir(parents=True, exist_ok=True)
        return own
