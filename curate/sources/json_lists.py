"""Lists in one JSON document: an array of entries, or an object that holds films by their names.

Such an object may stand below ``data``, ``database`` or ``videos``, beside facts about the list itself.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO

from reelweave.curate.sources.entries import InvalidEntry, ListEntry, entry_of, names_film
from reelweave.loader.errors import UsageError

MAX_JSON_BYTES = 256 << 20
"""A document is read as a whole, at up to twenty times its size."""

_TABLES = ("data", "database", "videos")


class _TwiceError(ValueError):
    """Key that an object names twice: the second would hide the first."""


def json_entries(file: BinaryIO, name: str) -> Iterator[ListEntry | InvalidEntry]:
    """Yield the entries of the JSON document in ``file`` in order.

    An object of films has the name or path of each as its key, and as its value the film's row, or a list of rows.
    Columns are those of other lists.

    Args:
        file: File open for reading.
        name: Name of the list, for messages.

    Raises:
        UsageError: The file is no JSON in UTF-8, larger than `MAX_JSON_BYTES`, or holds no table of films, or several.
    """
    table = _table(_document(file, name), name)
    rows = (
        (key, row) for key, value in table for row in (value if isinstance(value, list) and key else [value])
    )
    for index, (key, row) in enumerate(rows, 1):
        label = f"entry {index}"
        if isinstance(row, dict):
            yield entry_of(row, label, key)
        else:
            yield InvalidEntry(
                label, f'{f"(key {key!r}) " if key else ""}is no object like {{"path": "..."}}'
            )


def _document(file: BinaryIO, name: str) -> Any:
    data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise UsageError(
            f"list {name} has more than {MAX_JSON_BYTES >> 20} MiB, and a .json is read as a whole; save it as .jsonl,"
            " an entry a line"
        )
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except UnicodeDecodeError:
        raise UsageError(f"list {name} is no UTF-8 text; save it as UTF-8") from None
    except _TwiceError as error:
        raise UsageError(
            f"list {name} has the key {error} twice in one object; join both, or use an array of entries"
        ) from None
    except RecursionError:
        raise UsageError(f"list {name} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(
            f"list {name} is no JSON: {error}; name it .jsonl if each line is an entry"
        ) from error


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) < len(pairs):
        raise _TwiceError(repr(Counter(key for key, _ in pairs).most_common(1)[0][0]))
    return by_key


def _table(value: Any, name: str) -> Sequence[tuple[str, Any]]:
    """Return the rows of a document, each with its key; "" in an array."""
    # An array of rows, or one film alone.
    if isinstance(value, list):
        return [("", row) for row in value]
    if not isinstance(value, dict):
        raise UsageError(f'list {name} is no array like [{{"path": "..."}}], and no object of films by name')
    if names_film(value):
        return [("", value)]
    # An object whose key is a usual name of a table, or else one of films by name.
    tables = {key: inner for key, inner in value.items() if key in _TABLES and isinstance(inner, list | dict)}
    if not tables:
        if value and not any(
            isinstance(row, dict) for row in chain.from_iterable(map(_rows, value.values()))
        ):
            raise UsageError(
                f"list {name} names no film: its keys {', '.join(map(repr, list(value)[:3]))} hold no objects with the"
                " columns of films"
            )
        return list(value.items())
    # Beside it, any other array of films: of two tables none is guessed.
    tables |= {
        key: inner for key, inner in value.items() if isinstance(inner, list) and any(map(_is_film, inner))
    }
    if len(tables) > 1:
        raise UsageError(
            f"list {name} has several tables of films ({', '.join(tables)}); join them into one array of entries"
        )
    (inner,) = tables.values()
    return [("", row) for row in inner] if isinstance(inner, list) else list(inner.items())


def _rows(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _is_film(row: Any) -> bool:
    return isinstance(row, Mapping) and names_film(row)
