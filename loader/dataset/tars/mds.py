"""Samples in uncompressed MDS shards of Mosaic Streaming: where each column lies in a sample's bytes.

A sample is a little-endian uint32 for the size of each column without a fixed one, then the columns in their order
(mosaicml-streaming, format version 2). Nothing is decoded here but texts and numbers, so pickles stay bytes.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from reelweave.loader.dataset.tars.media import CAPTION_FIELDS, MEDIA, media_suffix
from reelweave.loader.errors import RunError

MAX_COLUMNS = 256
MAX_NAME_CHARS = 200
_COUNT = struct.Struct("<I")
_CAPTIONS = ("caption", "captions", "text", "prompt", "txt")
_PICTURES = {"jpeg": "jpg", "png": "png"}
_NUMBERS = {
    "int": "<q",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
}
_TEXT_NUMBERS = {"str_int": int, "str_float": float, "str_decimal": float}
_MAX_TEXT_NUMBER = 64
_READ = frozenset({*_NUMBERS, *_TEXT_NUMBERS, "str", "json"})


class MdsColumn(BaseModel, frozen=True, extra="forbid"):
    """Name, encoding and size of a column of the samples.

    Attributes:
        name: name in the shards.
        encoding: name of its encoding in Mosaic Streaming.
        size: bytes of every value; None where each has its own.
        suffix: suffix of its values as members of a sample, such as mp4 or txt.
    """

    name: str = Field(max_length=MAX_NAME_CHARS)
    encoding: str = Field(max_length=MAX_NAME_CHARS)
    size: int | None = Field(ge=0, lt=2**32)
    suffix: str = Field(max_length=MAX_NAME_CHARS + 8)


class MdsColumns(BaseModel, frozen=True, extra="forbid"):
    """All columns of a dataset's samples, in the order of their bytes; suffixes are unique."""

    columns: tuple[MdsColumn, ...] = Field(max_length=MAX_COLUMNS)

    @model_validator(mode="after")
    def _check_suffixes(self) -> Self:
        suffixes = [column.suffix for column in self.columns]
        if len(set(suffixes)) < len(suffixes):
            raise ValueError("two columns have one suffix")
        return self

    def locate(self, region: bytes | memoryview) -> Iterator[tuple[str, int, int]]:
        """Yield suffix, start and size of each column in a sample's bytes.

        Raises:
            RunError: the sizes do not fill the bytes.
        """
        own = sum(not column.size for column in self.columns)  # as in Mosaic, where a fixed size of 0 is none
        at, sizes = own * _COUNT.size, []
        for number in range(own):
            if (number + 1) * _COUNT.size > len(region):
                raise RunError(f"the sample has {len(region)} bytes, too few for the sizes of its columns")
            sizes.append(_COUNT.unpack_from(region, number * _COUNT.size)[0])
        places, remaining = [], iter(sizes)
        for column in self.columns:
            size = column.size or next(remaining)
            places.append((column.suffix, at, size))
            at += size
        if at != len(region):
            raise RunError(f"the columns of the sample fill {at} bytes, and it has {len(region)}")
        yield from places

    def read(self, region: bytes | memoryview) -> dict[str, memoryview]:
        """Return the contents of a sample by suffix, as views.

        Raises:
            RunError: the sizes do not fill the bytes.
        """
        view = memoryview(region)
        return {suffix: view[start : start + size] for suffix, start, size in self.locate(region)}

    def metadata(self, members: dict[str, memoryview]) -> bytes:
        """Return the texts and numbers of a sample as JSON by column, captions and what cannot be read left out."""
        values: dict[str, Any] = {}
        for column in self.columns:
            if column.suffix not in ("txt", media_suffix(members)):
                value = _value(column.encoding, members[column.suffix])
                if column.suffix == "json" and isinstance(value, dict):
                    values |= value
                elif value is not None and not (column.suffix == "json" and _are_captions(value)):
                    values[column.name] = value
        return json.dumps(values).encode()

    def unread(self) -> list[str]:
        """Return the columns of which nothing is read, with their encodings: other media, pickles, arrays."""
        suffixes = [column.suffix for column in self.columns]
        return [
            f"{column.name} ({column.encoding})"
            for column in self.columns
            if column.suffix not in ("txt", "json", media_suffix(suffixes))
            and (column.encoding not in _READ or ("txt" in suffixes and column.name in CAPTION_FIELDS))
        ]


def _are_captions(value: Any) -> bool:
    """Return whether a JSON is a list of captions, which are read as such."""
    return isinstance(value, list) and any(isinstance(text, str) for text in value)


def mds_key(path: str, offset: int) -> str:
    """Return the key of the sample that begins at an offset of a shard: samples of MDS have none of their own."""
    return f"{path.removesuffix('.mds')}/{offset:010d}"


def name_columns(names: list[str], encodings: list[str], sizes: list[int | None], first: bytes) -> MdsColumns:
    """Name the columns of a dataset by what they hold: the media, the caption, a JSON, others by their names.

    Args:
        names: names of the columns.
        encodings: their encodings.
        sizes: their fixed sizes, or None.
        first: bytes of the first sample, which tell what columns of bytes hold.

    Raises:
        RunError: the bytes contradict the columns, or no column holds a video or a picture.
    """
    plain = [
        MdsColumn(name=name, encoding=encoding, size=size, suffix=f"column{number}")
        for number, (name, encoding, size) in enumerate(zip(names, encodings, sizes, strict=True))
    ]
    contents = MdsColumns(columns=tuple(plain)).read(first)
    encoded = dict(zip(names, encodings, strict=True))
    texts = _captions_first(name for name, encoding in encoded.items() if encoding == "str")
    jsons = [name for name, encoding in encoded.items() if encoding == "json"]
    if not texts and len(jsons) > 1:  # of several, one whose name says so has the captions
        jsons = _captions_first(jsons)[:1]
    suffixes: list[str] = []
    for column in plain:
        kind = _media_kind(column, contents[column.suffix])
        if column.name in texts[:1]:
            suffix = "txt"
        elif jsons == [column.name]:
            suffix = "json"
        elif kind is not None:
            suffix = kind if column.name == kind else f"{_plain(column.name)}.{kind}"
        else:
            suffix = f"{_plain(column.name)}.{_plain(column.encoding)}"
        suffixes.append(suffix if suffix not in suffixes else f"{len(suffixes)}.{suffix}")
    if media_suffix(suffixes) is None:
        listed = ", ".join(f"{name} ({encoding})" for name, encoding in zip(names, encodings, strict=True))
        raise RunError(f"no column holds a video or picture that is read: {listed}")
    return MdsColumns(
        columns=tuple(
            column.model_copy(update={"suffix": suffix})
            for column, suffix in zip(plain, suffixes, strict=True)
        )
    )


def _captions_first(names: Iterable[str]) -> list[str]:
    """Return the names that say that a column holds captions, by themselves or by their last part; the best first."""
    found = [(name, part) for name in names for part in (name, name.rpartition(".")[2]) if part in _CAPTIONS]
    found.sort(key=lambda pair: (pair[0] != pair[1], _CAPTIONS.index(pair[1])))
    return list(dict.fromkeys(name for name, _ in found))


def _plain(name: str) -> str:
    """Return a name as part of a suffix, which holds no slash and does not end like media by chance."""
    words = name.replace("/", "_").replace("\0", "_").lower() or "column"
    return f"{words}_" if words.rpartition(".")[2] in MEDIA else words


def _media_kind(column: MdsColumn, content: memoryview) -> str | None:
    """Return the suffix of a column's media: by its encoding, its name, or the first bytes; None for other columns."""
    if column.encoding in _PICTURES:
        return _PICTURES[column.encoding]
    if column.encoding != "bytes":
        return None
    last = column.name.rpartition(".")[2].lower()
    if last in MEDIA:
        return last
    head = bytes(content[:64])
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
        return "mp4"
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "webm" if b"webm" in head else "mkv"
    if head.startswith(b"RIFF"):
        return {b"AVI ": "avi", b"WEBP": "webp"}.get(head[8:12])
    pictures = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"G@": "ts"}
    return next((kind for start, kind in pictures.items() if head.startswith(start)), None)


def _value(encoding: str, content: memoryview) -> Any:
    """Return a text, a number, which may be NaN or infinite, or JSON; None for what is none or cannot be read."""
    try:
        if encoding in _NUMBERS:
            return struct.unpack(_NUMBERS[encoding], content)[0]
        if encoding == "str":
            return bytes(content).decode("utf-8", "replace")
        if encoding in _TEXT_NUMBERS and len(content) <= _MAX_TEXT_NUMBER:
            return _TEXT_NUMBERS[encoding](bytes(content))
        if encoding == "json":
            return json.loads(bytes(content))
    except (ValueError, RecursionError, struct.error):
        pass
    return None
