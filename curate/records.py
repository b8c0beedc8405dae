"""The plain record that travels through the stages: one span of one source, or one source without any."""

import hashlib
from dataclasses import asdict, dataclass, field, fields
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One span and what became of it so far. All fields are plain values, so that any runner can carry it.

    Attributes:
        source: URI as the input spelled it.
        part: place of this record among the source's records, from 0.
        parts: how many records the source has.
        start_s: seconds after the source's first frame; None when the source gave no span.
        end_s: as ``start_s``.
        state: "kept", "filtered", "duplicate" or "failed".
        stage: which stage decided the state.
        reason: in words; empty when kept.
        score: the number a filter decided on.
        threshold: what it was compared with.
        duplicate_of: key of the sample kept in its place.
        key: of the clip; only when one was cut.
        source_sha256: of the source's bytes.
        attributes: what the input list said of the source.
        frames: of the clip.
        fps: of the clip.
        height: of the clip, pixels.
        width: of the clip, pixels.
        duration_s: frames / fps.
        audio: codec of the sound track, or "none".
        caption: text, or "".
        caption_source: where it comes from.
        caption_provenance: of a model's caption.
        text_tokens: words of the caption.
        scores: by name.
        split: "train" or "val".
        bin: group of shapes that share shards.
        sha256: of the clip's bytes.
        clip_bytes: size of the clip.
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

    @property
    def clip_id(self) -> str:
        """Names the clip's bytes: the same span of the same source, encoded the same way."""
        return f"{self.key}-{self.sha256[:16]}"

    def to_row(self) -> Row:
        """Its fields by name."""
        return asdict(self)

    @staticmethod
    def from_row(row: Row) -> "Record":
        """The record in a row, other columns left aside."""
        return Record(**{name: row[name] for name in FIELDS if name in row})


FIELDS = tuple(item.name for item in fields(Record))


def clip_key(source_sha256: str, start_s: float, end_s: float) -> str:
    """The key of a sample: from the content of its source and its span (microseconds), never from a path.

    Being a digest it also spreads the clips of one source over the shards.
    """
    span = f"{source_sha256}:{round(start_s * 1e6)}:{round(end_s * 1e6)}"
    return hashlib.sha256(span.encode()).hexdigest()[:20]
