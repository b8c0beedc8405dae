"""Rows of the accounting that a person means by a key, its beginning, or a source."""

import difflib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.dataset import Dataset, Row
from reelweave.loader.errors import UsageError

_SHOWN = 5
_COMPARED = 2000  # keys or sources that a mistyped word is compared with
_LONGEST_WORD = 4096
_ALIKE = 0.6
"""Least likeness, 0 to 1, of what is offered without a common beginning."""


def find_rows(dataset: Dataset, word: str, at_s: float | None = None) -> list[Row]:
    """Return the accounting rows that a word names, the deciding one first.

    Args:
        dataset: dataset with an accounting.
        word: key, a beginning of one key only, source, or the last part of one source's path.
        at_s: second of a source whose span is meant; None for all of its rows.

    Raises:
        UsageError: nothing, or more than one key or source, is named so.
    """
    word = word[:_LONGEST_WORD]
    sources = _sources(dataset, word)
    if at_s is not None or (sources and not len(find_keys(dataset, word))):
        return _rows_of_source(dataset, word, sources, at_s)
    return rows_of_key(dataset, _key(dataset, word))


def rows_of_key(dataset: Dataset, key: str) -> list[Row]:
    """Return the accounting rows of a key, kept ones first; other spellings of its source follow."""
    return sorted(dataset.rows_where("accounting", "key", key), key=lambda row: row["state"] != "kept")


def _key(dataset: Dataset, word: str) -> str:
    keys = find_keys(dataset, word)
    if len(keys) == 1 or word in set(keys[:1]):
        return keys[0]
    where = dataset.storage.root
    if keys:
        more = f" and {len(keys) - _SHOWN:,} more" if len(keys) > _SHOWN else ""
        raise UsageError(
            f"{word!r} is the beginning of {len(keys):,} keys of {where}: {', '.join(keys[:_SHOWN])}{more};"
            " give more of it"
        )
    hint = ""
    if near := _nearest(dataset, "key", word):
        hint = f"; the nearest keys are {', '.join(near)}"
    elif near := _nearest(dataset, "source", word):
        hint = f"; the nearest sources are {', '.join(near)}"
    raise UsageError(f"{where} has no clip and no source {word!r}{hint}")


def find_keys(dataset: Dataset, word: str) -> list[str]:
    """Return the keys that begin with a word, sorted; one that is the word itself comes first."""
    found_keys: set[str] = set()
    for keys in _columns(dataset, "key"):
        found_keys |= set(keys.filter(pc.starts_with(keys, word)).to_pylist())
    return [word] if word in found_keys else sorted(found_keys)


def _sources(dataset: Dataset, word: str) -> list[str]:
    """Return the sources with this URI, else those whose path ends in it."""
    found_sources: dict[str, None] = {}
    for sources in _columns(dataset, "source"):
        if pc.any(pc.equal(sources, word)).as_py():
            return [word]
        if word:
            found_sources |= dict.fromkeys(
                sources.filter(pc.ends_with(sources, f"/{word.lstrip('/')}")).to_pylist()
            )
    return list(found_sources)


def _columns(dataset: Dataset, name: str) -> Iterator[pa.ChunkedArray]:
    """Yield the different values of a column of the accounting, by parts."""
    for table in dataset.table_parts("accounting", [name]):
        yield pc.unique(table.column(name)).drop_null()


def _rows_of_source(dataset: Dataset, word: str, sources: list[str], at_s: float | None) -> list[Row]:
    where = dataset.storage.root
    if not sources:
        near = _nearest(dataset, "source", word)
        raise UsageError(f"{where} has no source {word!r}; the nearest are {', '.join(near) or 'none'}")
    if len(sources) > 1:
        raise UsageError(
            f"{len(sources):,} sources of {where} end in {word!r}: {', '.join(sources[:_SHOWN])}; give the whole path"
        )
    rows = dataset.rows_where("accounting", "source", sources[0])
    if at_s is None:
        return rows
    spans = [row for row in rows if row["start_s"] is not None]
    matching = [row for row in spans if row["start_s"] <= at_s < row["end_s"]]
    if matching:
        return matching
    if not spans:
        return rows
    first, last = min(row["start_s"] for row in spans), max(row["end_s"] for row in spans)
    raise UsageError(f"{sources[0]} has spans from {first:.2f} to {last:.2f} s, none of them at {at_s:g} s")


def _nearest(dataset: Dataset, name: str, word: str) -> list[str]:
    """Return the values of a column with the longest common beginning, of these the most similar."""
    longest, some = 0, dict[str, None]()
    for column in _columns(dataset, name):
        for length in range(min(len(word), 64), longest - 1, -1):
            close = column.filter(pc.starts_with(column, word[:length]))
            if len(close):
                some = some if length == longest else {}
                longest = length
                if len(some) < _COMPARED:
                    some |= dict.fromkeys(close.slice(0, _COMPARED - len(some)).to_pylist())
                break
    if longest:
        return difflib.get_close_matches(word[:256], list(some), n=3, cutoff=0.0)
    # Without a common beginning, what shares hardly a letter is nearest to nothing. Sources are known by their names.
    names = {value.rsplit("/", 1)[-1]: value for value in some}
    return [names[name] for name in difflib.get_close_matches(word[:256], list(names), n=3, cutoff=_ALIKE)]
