"""Clips that the scan of a part encoded ahead, kept in the ledger until the spans of the source are known.

Near the ends of a part, and where a prediction was wrong, there is none. Those clips are cut from a decoder
of their own, from the same frames to the same bytes.
"""

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters import SpanMotion
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.picture import Geometry
from reelweave.curate.shots.spans import Span
from reelweave.curate.source_pass.lookahead_encode import AheadClip, shows
from reelweave.curate.source_pass.part_store import PartStore
from reelweave.curate.source_pass.sampling import ClipPictures

_CLIP, _INDEX = "ahead", "ahead-index"


def keep_clips(store: PartStore, part_index: int, size: Geometry | None, clips: Iterable[AheadClip]) -> None:
    """Write the clips of a part to the ledger, one at a time, and their size."""
    index = {"size": _size(size)}
    for clip in clips:
        motion = clip.collected.motion
        arrays: dict[str, NDArray[Any]] = {
            "data": np.frombuffer(clip.data, np.uint8),
            "pictures": clip.collected.pictures,
            "times_s": clip.collected.times_s,
            "fingerprint": clip.collected.fingerprint,
            "vectors_missing": np.array([motion.vectors_missing]),
        }
        for name, values in (("motion", motion.motion), ("motion_local", motion.motion_local)):
            if values is not None:
                arrays[name] = values
        store.put(_CLIP, part_index, arrays, clip.first)
        rate = np.array([clip.rate.numerator, clip.rate.denominator])
        index |= {
            f"{clip.first}.shown": clip.shown,
            f"{clip.first}.times_s": clip.times_s,
            f"{clip.first}.rate": rate,
        }
    store.put(_INDEX, part_index, index)


class PartClips:
    """Clips that begin in one part and were encoded ahead, as `reelweave.curate.cut.EncodedSpans`.

    Args:
        store: Place of what is known of the source.
        part_index: Index of the part. The one before it also encoded the clip across, or at, its end.
        firsts: First frame of each part in the source.
        line: Timeline of the source.
        size: Size of its clips.
    """

    def __init__(
        self, store: PartStore, part_index: int, firsts: Sequence[int], line: FrameTimes, size: Geometry
    ) -> None:
        self._store, self._line = store, line
        self._places: dict[int, tuple[int, int]] = {}  # of clips by first frame: part and first frame in it
        self._index: dict[int, tuple[NDArray[Any], NDArray[Any], Fraction]] = {}
        for part in {max(0, part_index - 1), part_index}:
            index = store.arrays(_INDEX, part)
            if not np.array_equal(index["size"], _size(size)):
                continue
            for name in index:
                if name.endswith(".shown"):
                    local_first = int(name.removesuffix(".shown"))
                    first = firsts[part] + local_first
                    self._places[first] = part, local_first
                    rate = Fraction(*index[f"{local_first}.rate"].tolist())
                    self._index[first] = index[name], index[f"{local_first}.times_s"], rate

    def __contains__(self, span: object) -> bool:
        """Return whether exactly this span was encoded, frame for frame."""
        if not isinstance(span, Span) or span.first not in self._index:
            return False
        shown, times_s, rate = self._index[span.first]
        line = self._line
        # Samples weigh frames by times that are the same to the last bit.
        same_timing = rate == line.clip_rate(span.first, span.last) and np.array_equal(
            times_s, line.times_s[span.first : span.last + 1]
        )
        return same_timing and shows(shown, span, line)

    def get(self, span: Span, /) -> bytes | None:
        """Return a span as an MP4 file of pictures only, index last, or None when it was not encoded."""
        return self._clip(span)["data"].tobytes() if span in self else None

    def take_pictures(self, span: Span) -> ClipPictures:
        """Return the samples that were collected from a span that was encoded."""
        arrays = self._clip(span)
        motion = SpanMotion(
            arrays.get("motion"), arrays.get("motion_local"), bool(arrays["vectors_missing"][0])
        )
        return ClipPictures(arrays["pictures"], arrays["times_s"], motion, arrays["fingerprint"])

    def _clip(self, span: Span) -> dict[str, NDArray[Any]]:
        return self._store.arrays(_CLIP, *self._places[span.first])


def _size(size: Geometry | None) -> NDArray[Any]:
    return np.frombuffer(json.dumps(size and size.to_json()).encode(), np.uint8)
