"""Code of a stage that a user writes: an entry point, a module or one file, found by name and known by its digest.

Only what the configuration names is imported. The text of a file travels to the workers, so that what was digested is
what runs, on nodes without the file too. Modules and entry points must be installed on every node.
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from reelweave.loader.errors import UsageError, first_line

GROUP = "reelweave.stages"
"""Group of entry points."""

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class StageCode:
    """Code of one stage, found and digested but not imported.

    Attributes:
        stage: Name of the stage in the configuration.
        place: "MODULE:CLASS" or "FILE.py:CLASS".
        text: Content of the file; None for an installed module.
        version: Name and version of the distribution whose entry point it is, or "".
        digest: Digest of the module's source, and of the version.
    """

    stage: str
    place: str
    text: bytes | None
    version: str
    digest: str

    def load(self) -> type:
        """Import the code and return its class.

        Raises:
            UsageError: the import fails, there is no such class, or a module is another one than was digested.
        """
        home, _, name = self.place.rpartition(":")
        try:
            module = importlib.import_module(home) if self.text is None else self._module(home)
        except Exception as error:  # code of others may raise anything
            raise UsageError(
                f"stages.{self.stage}: {home} cannot be imported ({type(error).__name__}: {first_line(error)})"
            ) from error
        stage_type = getattr(module, name, None)
        if not isinstance(stage_type, type):
            raise UsageError(f"stages.{self.stage}: {home} has no class {name}")
        if self.text is None and _digest(_source(module.__spec__), self.version) != self.digest:
            raise UsageError(
                f"stages.{self.stage}: {home} is another one here than where the run began; install the same"
                " version on every node"
            )
        return stage_type

    def _module(self, path: str) -> ModuleType:
        name = f"reelweave_stage_{self.digest[:16]}"
        if name not in sys.modules:
            module = ModuleType(name)
            module.__file__ = path
            sys.modules[name] = module
            try:
                exec(compile(self.text or b"", path, "exec"), module.__dict__)  # noqa: S102 - named by the user
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


def find_code(stage: str, use: str) -> StageCode:
    """Find the code of a stage, without importing it.

    Args:
        stage: Name of the stage in the configuration.
        use: "FILE.py:CLASS", "MODULE:CLASS", or "" for the entry point of the stage's name.

    Raises:
        UsageError: there is none.
    """
    if not use:
        return _installed_stage(stage)
    home, colon, name = use.rpartition(":")
    if not colon or not home or not name.isidentifier():
        raise UsageError(
            f"stages.{stage}.use={use!r} names no class; write FILE.py:CLASS or MODULE:CLASS, or leave it out"
            " for an entry point"
        )
    if home.endswith(".py"):
        text = _read(Path(home).expanduser(), f"stages.{stage}.use: {home}")
        return StageCode(stage, use, text, "", _digest(text, ""))
    return _module_code(stage, use, "")


def list_installed() -> list[importlib.metadata.EntryPoint]:
    """Return the entry points of all installed stages, by name; none is imported."""
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def version_of(point: importlib.metadata.EntryPoint) -> str:
    """Return name and version of the distribution that an entry point belongs to."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else ""


def _read(path: Path, named: str) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{named} is no file of Python; give one of at most {_MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{named} cannot be read: {error.strerror}") from error


def _installed_stage(stage: str) -> StageCode:
    all_points = list_installed()
    points = {point.value: point for point in all_points if point.name == stage}
    if not points:
        names = sorted({point.name for point in all_points})
        close = get_close_matches(stage, names, n=1)
        nearest = f"did you mean {close[0]}? " if close else ""
        listing = f"installed: {', '.join(names)}" if names else "none is installed"
        raise UsageError(
            f"stages.{stage}: no entry point of this name in the group {GROUP}; {nearest}{listing}. Or set"
            f" stages.{stage}.use to FILE.py:CLASS or MODULE:CLASS"
        )
    if len(points) > 1:
        raise UsageError(
            f"stages.{stage}: several installed packages have this entry point ({', '.join(sorted(points))}); set"
            f" stages.{stage}.use to one of them"
        )
    (point,) = points.values()
    return _module_code(stage, point.value, version_of(point))


def _module_code(stage: str, module_path: str, version: str) -> StageCode:
    home = module_path.partition(":")[0]
    moved = f"; Reelweave's modules are in reelweave.{home}" if home.startswith("curate.") else ""
    try:
        # A parent package is imported, as Python does to find what is in it.
        spec = importlib.util.find_spec(home)
    except Exception as error:
        raise UsageError(
            f"stages.{stage}: {home} cannot be imported ({type(error).__name__}: {first_line(error)}){moved}"
        ) from error
    if spec is None:
        raise UsageError(f"stages.{stage}: there is no module {home} here{moved}; install its package")
    return StageCode(stage, module_path, None, version, _digest(_source(spec), version))


def _source(spec: object) -> bytes:
    """Return the content of a module's file, empty for one without."""
    origin = getattr(spec, "origin", None)
    path = Path(origin) if isinstance(origin, str) else None
    return path.read_bytes() if path is not None and path.is_file() else b""


def _digest(source: bytes, version: str) -> str:
    return hashlib.sha256(version.encode() + b"\0" + source).hexdigest()
