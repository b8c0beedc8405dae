"""Records that curation stores, and the one place that turns them into JSON or columns and back.

In memory and between processes they are frozen objects. In the ledger they are JSON objects with the same
names in the same order. Many of them are a table with the same names.
"""

import base64
import functools
import hashlib
import itertools
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from reelweave.curate.caption.types import Caption
from reelweave.curate.models.clip_frames import Fault

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Stored = TypeVar("Stored", bound="DataclassInstance")


@dataclass(frozen=True)
class Record:
    """One span of a source and its state so far, or a source that gave no span.

    Attributes:
        source: URI, spelled as in the input.
        part: Index of this record among the records of its source, from 0.
        parts: Number of records of the source.
        start_s: Start of the span in seconds after the source's first frame; None when the source gave no span.
        end_s: End of the span, likewise.
        state: "kept", "filtered", "duplicate" or "failed".
        stage: Stage that decided the state.
        reason: The decision in words. When kept: what was done to the pictures without a mark of the source that asks
            for it, or nothing.
        score: Score that a filter compared.
        threshold: Threshold it was compared with.
        duplicate_of: Key of the sample that is kept instead.
        key: Key of the clip; None where none was cut.
        source_sha256: SHA-256 of the source's bytes.
        segment: Place of the segment that a list names among those of the source; None outside of all.
        attributes: Columns of the input list, such as "licence".
        frames: Number of frames of the clip.
        fps: Frame rate of the clip.
        height: Height of the clip in pixels.
        width: Width of the clip in pixels.
        duration_s: frames / fps.
        audio: Codec of the sound track, or "none".
        caption: Text, or "".
        caption_source: Origin of the caption, see `reelweave.curate.caption.types.Caption`.
        caption_provenance: Model, prompt and seeds of a model's caption.
        text_tokens: Number of words of the caption.
        scores: Scores by name.
        split: "train" or "val".
        bin: Group of shapes that share shards.
        sha256: SHA-256 of the clip's bytes.
        clip_bytes: Size of the clip.
        ends_by: See `reelweave.curate.shots.spans.Span`, as are the next four.
    """

    source: str
    part: int = 0
    parts: int = 1
    start_s: float | None = None
    end_s: float | None = None
    state: str = "kept"
    stage: str = ""
    reason: str = ""
    score: float | None = None
    threshold: float | None = None
    duplicate_of: str | None = None
    key: str | None = None
    source_sha256: str = ""
    segment: Annotated[int | None, Field(exclude_if=lambda segment: segment is None)] = None
    attributes: dict[str, str] = field(default_factory=dict)
    frames: int = 0
    fps: float = 0.0
    height: int = 0
    width: int = 0
    duration_s: float = 0.0
    audio: str = "none"
    caption: str = ""
    caption_source: str = "none"
    caption_provenance: dict[str, str] = field(default_factory=dict)
    text_tokens: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    split: str = "train"
    bin: str = "all"
    sha256: str = ""
    clip_bytes: int = 0
    ends_by: Annotated[str, Field(exclude_if=lambda kind: not kind)] = ""
    ends_probability: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    inside: Annotated[str, Field(exclude_if=lambda kind: not kind)] = ""
    inside_s: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    inside_probability: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None

    @property
    def clip_id(self) -> str:
        """Identity of the clip's bytes: equal for the same span of the same source, encoded in the same way."""
        return clip_id(self.key, self.sha256)

    def columns(self, names: Iterable[str]) -> dict[str, object]:
        """Return the named fields, as a row of a table of the dataset."""
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class SourceSummary:
    """Ledger entry of one source: all its records, and the totals of its pass.

    Attributes:
        records: One for each span in order, or a single one without a span.
        cpu_s: Processor seconds of the pass; None for a source that failed, as are the next two.
        tags: Text that the container holds, by tag.
        pixel_s: Pixels of a frame times the duration in seconds.
        seconds: Wall time of the pass.
        measured: Versions of the scores in `reelweave.curate.filters.measure.ADDED` that the clips were measured for.
        operation_s: Processor seconds of the pass by operation.
    """

    records: tuple[Record, ...]
    cpu_s: float | None = None
    tags: dict[str, str] | None = None
    pixel_s: float | None = None
    seconds: float | None = None
    measured: dict[str, int] | None = None
    operation_s: dict[str, float] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PackedArray:
    """An array as JSON values.

    Attributes:
        dtype: Type of the elements, in numpy's notation.
        shape: Sizes.
        data: Elements in C order, base64.
    """

    dtype: str
    shape: tuple[int, ...]
    data: str

    @staticmethod
    def of(array: "NDArray[np.generic]") -> "PackedArray":
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        return PackedArray(array.dtype.str, array.shape, data)

    @property
    def array(self) -> "NDArray[np.generic]":
        """The array; it cannot be written to."""
        flat = np.frombuffer(base64.b64decode(self.data), np.dtype(self.dtype))
        return flat.reshape(self.shape)


@dataclass(frozen=True)
class ClipScores:
    """Scores of a clip, by name."""

    scores: dict[str, float]


@dataclass(frozen=True)
class ClipEmbedding:
    """Video embedding of a clip, and the aesthetic score where it was asked for."""

    embedding: PackedArray
    scores: dict[str, float] | None = None


@dataclass(frozen=True)
class TextEmbedding:
    """Embedding of a caption, which lies among the arrays of the ledger.

    Attributes:
        tokens: Number of tokens.
        arrays: Name in the ledger.
        sha256: Digest of the array as an .npy file.
    """

    tokens: int
    arrays: str
    sha256: str


ClipResult = Fault | Caption | ClipEmbedding | TextEmbedding | ClipScores
"""Result of one stage for one clip. In JSON each kind is known by its first field."""

_CLIP_RESULT: TypeAdapter[ClipResult] = TypeAdapter(Annotated[ClipResult, Field(union_mode="left_to_right")])


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(record: "DataclassInstance") -> dict[str, object]:
    """Return the JSON object of a record: fields by name, without those of its own that are None."""
    values = _adapter(type(record)).dump_python(record, by_alias=True)
    return {name: value for name, value in values.items() if value is not None}


def from_json(kind: type[Stored], values: Mapping[str, object]) -> Stored:
    """Return the record of a JSON object or of a table's row; other columns are ignored.

    Raises:
        ValueError: a field is missing or of another type.
    """
    stored: Stored = _adapter(kind).validate_python(values)
    return stored


def to_columns(records: "Sequence[DataclassInstance]") -> dict[str, pa.Array]:
    """Return a column for each field that one of the records has, by its name in JSON; null where it is None."""
    record_fields: list[dict[str, tuple[str, Any]]] = [_fields(kind) for kind in _types(records)]
    columns = {}
    for name, kind in {name: kind for each in record_fields for name, (_, kind) in each.items()}.items():
        values = [
            getattr(record, each[name][0]) if name in each else None
            for each, record in zip(record_fields, records, strict=True)
        ]
        columns[name] = _array(values, kind)
    return columns


def from_columns(table: pa.Table) -> Iterable[dict[str, object]]:
    """Yield the JSON object of each row of `to_columns`."""
    for batch in table.to_batches(_ROWS):
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            yield {name: value for name, value in row.items() if value is not None}


_ROWS = 256


def _types(records: Sequence[Any]) -> list[Any]:
    return [type(record) for record in records]


@functools.cache
def _fields(kind: type) -> dict[str, tuple[str, Any]]:
    """Return attribute and type of each field of a record, by its name in JSON."""
    by_name = {}
    for stored_field in fields(kind):
        name, field_type = stored_field.name, stored_field.type
        if get_origin(field_type) is Annotated:
            field_type, info = get_args(field_type)
            name = info.alias or name
        by_name[name] = stored_field.name, field_type
    return by_name


def _array(values: Sequence[Any], kind: Any) -> pa.Array:
    """Return values of a field's type as an array."""
    inner = get_args(kind)
    if get_origin(kind) is types.UnionType:
        return _array(values, inner[0])  # or None
    if kind in _SCALARS:
        return pa.array(values, _SCALARS[kind])
    mask = pa.array([record is None for record in values])
    if not inner:  # a record
        by_name: dict[str, tuple[str, Any]] = _fields(kind)
        arrays = [
            _array([record and getattr(record, at) for record in values], each)
            for at, each in by_name.values()
        ]
        return pa.StructArray.from_arrays(arrays, list(by_name), mask=mask)
    filled = [mapping or () for mapping in values]
    offsets = pa.array(np.cumsum([0, *map(len, filled)], dtype=np.int32))
    if get_origin(kind) is tuple:
        flat = list(itertools.chain.from_iterable(filled))
        return pa.ListArray.from_arrays(offsets, _array(flat, inner[0]), mask=mask)
    keys = _array(list(itertools.chain.from_iterable(filled)), inner[0])
    items = itertools.chain.from_iterable(mapping.values() for mapping in filled if mapping)
    return pa.MapArray.from_arrays(offsets, keys, _array(list(items), inner[1]), mask=mask)


_SCALARS: dict[Any, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64()}


def source_summary(values: Mapping[str, object]) -> SourceSummary:
    """Return the summary of a JSON object; see `from_json`."""
    return from_json(SourceSummary, values)


def clip_result(values: Mapping[str, object]) -> ClipResult:
    """Return the result of a JSON object, of whichever kind; see `from_json`."""
    return _CLIP_RESULT.validate_python(values)


def clip_id(key: str | None, sha256: str) -> str:
    """Return the identity of a clip's bytes, from the key of its sample and the SHA-256 of the clip."""
    return f"{key}-{sha256[:16]}"


_KEY_DIGITS = 20


def clip_key(source_sha256: str, start_s: float, end_s: float) -> str:
    """Return the key of a sample: a digest of its source's content and its span in microseconds, never of a path.

    Digests spread the clips of one source over the shards.
    """
    span = f"{source_sha256}:{round(start_s * 1e6)}:{round(end_s * 1e6)}"
    return hashlib.sha256(span.encode()).hexdigest()[:_KEY_DIGITS]


def key_numbers(keys: pa.Array) -> "tuple[NDArray[np.uint64], NDArray[np.uint16]]":
    """Return two numbers for each key of `clip_key`; compared one after the other, they sort as the keys do.

    Raises:
        ValueError: a text is no such key.
    """
    packed = unhex(keys, _KEY_DIGITS)
    high = np.ascontiguousarray(packed[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return high, np.ascontiguousarray(packed[:, 8:]).view(">u2")[:, 0].astype(np.uint16)


def unhex(texts: pa.Array, digits: int) -> NDArray[np.uint8]:
    """Return the bytes that lower hexadecimal texts of so many digits spell, [texts, digits / 2].

    Raises:
        ValueError: a text has another length, or is null.
    """
    texts = pa.concat_arrays([pa.array([], texts.type), texts])  # from its first value on
    _, where, data = texts.buffers()
    ends = np.frombuffer(where, np.int32)[: len(texts) + 1] if len(texts) else np.zeros(1, np.int32)
    if texts.null_count or (np.diff(ends) != digits).any():
        raise ValueError("a clip has no key or digest of this version")
    text = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]].reshape(-1, digits)
    values = np.where(text < ord("a"), text - ord("0"), text - (ord("a") - 10)).astype(np.uint8)
    return np.asarray(values[:, ::2] << 4 | values[:, 1::2], np.uint8)
