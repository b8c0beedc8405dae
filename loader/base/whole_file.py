"""Local files and folders that appear whole or not at all."""

import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the hidden name of a new file, of this writer alone, which replaces a file when the body succeeds.

    Args:
        path: path of the file; its folder is made.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{secrets.token_hex(8)}.{path.name}")
    try:
        yield aside
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside a path, which it takes when the body succeeds; else it is removed.

    Whoever may read the folder by the umask may read its files: safetensors makes them for their owner alone.

    Raises:
        OSError: it cannot be written, or the path is taken.
    """
    aside = path.with_name(f".{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        _share_as_folder(aside)
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _share_as_folder(folder: Path) -> None:
    """Give files the permissions of the folder above them, which mkdir took from the umask, but not to execute."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            shared = stat.S_IMODE(path.parent.stat().st_mode) & 0o666
            own = stat.S_IMODE(path.stat().st_mode)
            if own | shared != own:
                with suppress(OSError):  # mounts that keep no permissions refuse to change them
                    path.chmod(own | shared)
