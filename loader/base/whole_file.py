"""Local files and folders that appear whole or not at all."""

import secrets
import shutil
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

    Raises:
        OSError: it cannot be written, or the path is taken.
    """
    aside = path.with_name(f".{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
