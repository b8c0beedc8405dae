"""Frames of a clip by where they come from: copied from the source without loss, or encoded anew."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CopiedFrames:
    """Numbers of a clip's copied and encoded frames, as its scores hold them.

    What is neither copied nor counted at an end was encoded in between.

    Attributes:
        copied: copied frames.
        encoded_start: encoded frames before the first copied one; all frames where none is copied.
        encoded_end: encoded frames behind the last copied one.
    """

    copied: int
    encoded_start: int
    encoded_end: int

    @classmethod
    def of_whole(cls, frames: int, *, copied: bool) -> "CopiedFrames":
        """Return the numbers of a clip whose frames are all copied, or all encoded."""
        return cls(frames, 0, 0) if copied else cls(0, frames, 0)

    @classmethod
    def of_scores(cls, scores: Mapping[str, float | None]) -> "CopiedFrames | None":
        """Return the numbers that a clip's scores hold; None where they do not tell."""
        values = [scores.get(name) for name in NAMES]
        counts = [int(value) for value in values if value is not None and 0 <= value < _MOST_FRAMES]
        return cls(*counts) if len(counts) == len(NAMES) else None

    def scores(self) -> dict[str, float]:
        """Return the numbers by the name of their score."""
        return dict(zip(NAMES, map(float, (self.copied, self.encoded_start, self.encoded_end)), strict=True))

    def describe(self, frames: int) -> str:
        """Return in words which of so many frames are copies."""
        if not self.copied:
            return "all encoded"
        first, last = self.encoded_start, frames - self.encoded_end - 1
        between = frames - self.copied - self.encoded_start - self.encoded_end
        but = f" but {between}" if between else ""
        ends = f", {frames - self.copied} encoded" if self.copied < frames else ""
        return f"{first} to {last} copied{but}{ends}"


NAMES = ("copied_frames", "encoded_start_frames", "encoded_end_frames")
"""Scores of clips that were cut with another ``cut.mode`` than ``encode``."""

_MOST_FRAMES = 2**31
