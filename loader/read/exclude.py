"""Keys that a stream leaves out, from a file."""

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.base.named_file import lines_of, read_named_text
from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.dataset import Dataset

MAX_BYTES = 1 << 30
_log = logging.getLogger(__name__)


def read_keys(path: Path, named: str = "") -> list[str]:
    """Return the distinct keys of a file with one key a line, in its order; empty lines are skipped.

    Args:
        path: a local file in UTF-8.
        named: name of the file in messages; default: its path.

    Raises:
        UsageError: the file cannot be read, or is too large.
    """
    lines = (line.strip() for line in lines_of(read_named_text(path, MAX_BYTES, named)))
    return list(dict.fromkeys(line for line in lines if line))


def excluded_rows(source: SampleSource, path: Path | None, says: bool) -> IndexArray:
    """Return the index rows of the keys in a file, int64, rising.

    Args:
        source: a dataset, or a blend; a key counts in all of its datasets.
        path: file of keys; None for none.
        says: True to log how many samples these are, and how many keys no dataset knows.

    Raises:
        UsageError: the file cannot be read.
    """
    if path is None:
        return np.zeros(0, np.int64)
    keys = pa.array(read_keys(path, f"stream.exclude={path}"), pa.string())
    datasets = source.datasets if isinstance(source, Blend) else (source,)
    is_known, rows, first = np.zeros(len(keys), np.bool_), list[IndexArray](), 0
    for dataset in datasets:
        assert isinstance(dataset, Dataset)
        dataset_keys = dataset.column("key")
        place_N = pc.fill_null(pc.index_in(dataset_keys, value_set=keys), -1).to_numpy()
        rows.append(first + np.flatnonzero(place_N >= 0))
        is_known[place_N[place_N >= 0]] = True
        first += len(dataset_keys)
    excluded = np.concatenate(rows)
    if says:
        _say(path, len(excluded), keys.filter(pa.array(~is_known)).to_pylist())
    return excluded


def _say(path: Path, samples: int, unknown: list[str]) -> None:
    _log.warning("%d samples are left out, since %s (stream.exclude) lists their keys", samples, path)
    if unknown:
        some = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        _log.warning("%d keys of %s are those of no sample: %s", len(unknown), path, some)
