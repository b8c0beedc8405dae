"""Segments of a film that a list names, each with a caption of its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

MAX_SEGMENTS = 100_000
"""Segments of one film."""

Unit = Literal["s", "frame"]


@dataclass(frozen=True, slots=True)
class Segment:
    """One listed segment of a film.

    Attributes:
        start: Seconds after the film's first frame, or the number of a frame.
        end: End, excluded, in the same unit.
        unit: Unit of both.
        fps: Frames per second by which the list counts frames, where it says so.
        caption: Caption of the segment, or None.
        attributes: Further columns of the list for this segment.
    """

    start: float
    end: float
    unit: Unit = "s"
    fps: float | None = None
    caption: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def span(self) -> tuple[str, float, float, float]:
        """Unit, bounds and rate, which decide the frames; segments of one film are sorted by them."""
        return self.unit, self.start, self.end, self.fps or 0.0

    def __str__(self) -> str:
        if self.unit == "frame":
            return f"the listed frames {self.start:.0f} to {self.end:.0f}"
        return f"the listed span {self.start:.3f} to {self.end:.3f} s"


def sort_segments(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return segments sorted by their spans; one that was listed twice, word for word, counts once."""
    by_content = {
        (segment.span, segment.caption, tuple(segment.attributes.items())): segment for segment in segments
    }
    return tuple(sorted(by_content.values(), key=lambda segment: segment.span))


def overlap(segments: Sequence[Segment]) -> bool:
    """Return True if sorted segments may share frames: so may those in seconds and those in frames."""
    return any(
        earlier.unit != other.unit or other.start < earlier.end for earlier, other in pairwise(segments)
    )


def segments_to_json(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """Return segments as JSON values."""
    return [asdict(segment) for segment in segments]


def from_stored(rows: Iterable[Mapping[str, Any]]) -> tuple[Segment, ...]:
    """Return the segments of `segments_to_json`."""
    return tuple(Segment(**row) for row in rows)
