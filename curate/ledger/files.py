"""Files of the ledger: where they lie, damage in words, many at a time."""

import itertools
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from reelweave.loader.errors import RunError, first_line
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.steady import refuse_fault

Loaded = TypeVar("Loaded")

LEDGER = ".ledger/"
TABLE = ".parquet"

_READERS = 16
_EACH = 4  # objects that one of them reads in turn
_AT_ONCE = 1000  # keys that S3 removes in one request
_BROKEN = (
    ValueError,
    RecursionError,
    OSError,
    EOFError,
    KeyError,
    zlib.error,
    zipfile.BadZipFile,
    pa.ArrowException,
    MemoryError,
)
"""Exceptions that damaged JSON, gzip and .npz raise."""


@contextmanager
def intact(storage: Storage, path: str) -> Iterator[None]:
    """Raise a `RunError` in words where damaged bytes of a file raise something else."""
    try:
        yield
    except _BROKEN as error:
        refuse_fault(error, storage.uri(path))
        raise RunError(
            f"{storage.uri(path)} is damaged ({first_line(error)}); remove it: what it held is made again"
        ) from error


def read_many(read: Callable[[str], Loaded], names: Iterable[str]) -> Iterator[Loaded]:
    """Yield what a function reads under each name, in order; several are read at a time, and few wait."""

    def several(some: Sequence[str]) -> list[Loaded]:
        return [read(name) for name in some]

    rest = iter(names)
    with ThreadPoolExecutor(_READERS) as readers:
        while some := list(itertools.islice(rest, _EACH * _READERS)):
            # To wait for a thread takes longer than to read a small file of this machine.
            parts = [some[first : first + _EACH] for first in range(0, len(some), _EACH)]
            for loaded in readers.map(several, parts):
                yield from loaded


def delete_many(storage: Storage, paths: Iterable[str]) -> None:
    """Delete files, many in a request; those that are gone already are no error."""
    all_paths = list(paths)
    parts = (all_paths[first : first + _AT_ONCE] for first in range(0, len(all_paths), _AT_ONCE))
    with ThreadPoolExecutor(_READERS) as writers:
        list(writers.map(storage.delete_many, parts))


def identity_of(path: str) -> str:
    """Return the name of a file without folder and suffixes, which is the identity of what it holds."""
    return path.rsplit("/", 1)[-1].split(".", 1)[0]
