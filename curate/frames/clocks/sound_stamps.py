"""Stamps of a source's sound, and where it ends beside its pictures."""

from array import array
from collections.abc import MutableSequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_APART, _APART_S = 0.02, 1.0
"""Share of a film, and seconds, by which its sound may end before or behind its pictures."""

ENDS_BEFORE = "the sound of its source ends before the pictures"
HOLDS_NONE = "its source announces sound and holds none that can be read"
_AAC_HZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000)
"""Sample rates of AAC: ISO/IEC 14496-3, table 1.16."""
_AAC_SAMPLES = 1024
_OFF_S = 0.0012  # by which a step differs from a packet's duration, more than ticks of a millisecond make
_LEAST_PACKETS, _RUNS, _NEAR = 8, 4, 0.008
"""Packets between two such steps, runs of them in turn that tell a rate, and the share by which each may differ."""

ENDS_BEHIND = "the sound of its source goes on behind the pictures, which clips leave out"


@dataclass
class SoundStamps:
    """Stamps of a source's sound in the order of the file; packets without a stamp do not count.

    Attributes:
        tick_s: Seconds per tick.
        pts: Stamp of each packet in ticks.
        durations: Duration of each packet in ticks, 0 where unknown.
        pictures_before: Number of video packets before each packet.
        pictures: Number of video packets.
    """

    tick_s: float
    pts: MutableSequence[int] = field(default_factory=lambda: array("q"))
    durations: MutableSequence[int] = field(default_factory=lambda: array("q"))
    pictures_before: MutableSequence[int] = field(default_factory=lambda: array("q"))
    pictures: int = 0

    def lasting_s(self) -> NDArray[np.float64]:
        """Return how long each packet lasts in seconds; those that do not say so last as long as is usual."""
        lasting_s = np.array(self.durations, np.float64) * self.tick_s
        lasting_s[lasting_s <= 0] = self.usual_ticks * self.tick_s
        return lasting_s

    @property
    def usual_ticks(self) -> int:
        """Median distance of two stamps in ticks, 0 for fewer."""
        return int(np.median(np.diff(self.pts))) if len(self.pts) > 1 else 0


def uneven_end(stamps: SoundStamps, ends_s: float, begin_s: float) -> str:
    """Return words for sound that ends clearly before or behind its pictures, by stamps that need no repair.

    Args:
        stamps: Stamps of the sound, noted in a whole pass.
        ends_s: End of the pictures in seconds after the first frame.
        begin_s: Stamp of the first frame in seconds.
    """
    if not len(stamps.pts):
        return HOLDS_NONE
    apart_s = max(_APART_S, _APART * ends_s)
    if ends_s - heard_until_s(stamps, begin_s) > apart_s:
        return ENDS_BEFORE
    # A single wrong stamp lies far behind, too: what counts is how much sounds there.
    begins_s = np.array(stamps.pts, np.float64) * stamps.tick_s - begin_s
    return ENDS_BEHIND if stamps.lasting_s()[begins_s >= ends_s].sum() > apart_s else ""


def lacking_sound(stamps: SoundStamps, pictures_s: float) -> str:
    """Return words for sound that lasts clearly shorter than its pictures, where a repaired clock tells no more.

    Args:
        stamps: Stamps of the sound, noted in a whole pass.
        pictures_s: Seconds for which the pictures last, without holds.
    """
    if not len(stamps.pts):
        return HOLDS_NONE
    lacks_s = pictures_s - float(stamps.lasting_s().sum())
    if lacks_s <= max(_APART_S, _APART * pictures_s):
        return ""
    return f"the sound of its source lasts {lacks_s:.1f} s less than the pictures"


def heard_until_s(stamps: SoundStamps, begin_s: float) -> float:
    """Return the end of the sound in seconds after a stamp, 0 without sound."""
    if not len(stamps.pts):
        return 0.0
    # A last packet that does not say how long it lasts (WavPack in Matroska) lasts as long as the others.
    last = stamps.durations[-1] or stamps.usual_ticks
    return float((max(stamps.pts) + last) * stamps.tick_s - begin_s)


def other_rates(stamps: SoundStamps, hertz: int, samples: int = _AAC_SAMPLES) -> str:
    """Return words for AAC whose packets come at the pace of another sample rate, "" for none.

    Streams with spliced adverts are such films, once their packets are copied into a container that states one rate.

    Args:
        stamps: Stamps of the sound, noted in a whole pass.
        hertz: Sample rate that the header states.
        samples: Samples of a packet at that rate.
    """
    if hertz <= 0:
        return ""
    begins_s = np.array(stamps.pts, np.float64) * stamps.tick_s
    # Packets that share a stamp in TS follow one another by the stated rate, up to the next stamp.
    stamped: list[int] = []
    for packet in (np.flatnonzero(np.abs(np.diff(begins_s) - samples / hertz) > _OFF_S) + 1).tolist():
        if not stamped or packet - stamped[-1] >= _LEAST_PACKETS:
            stamped.append(packet)
    if len(stamped) <= _RUNS:
        return ""
    rates = np.diff(stamped) * samples / np.diff(begins_s[stamped]).clip(stamps.tick_s)
    others: list[str] = []
    for other in _AAC_HZ:
        is_near = np.abs(rates / other - 1) <= _NEAR
        if other != hertz and np.lib.stride_tricks.sliding_window_view(is_near, _RUNS).all(axis=1).any():
            others.append(f"{other} Hz")
    if not others:
        return ""
    return (
        f"parts of its sound come at the pace of {' and '.join(others)}, and its header states {hertz} Hz; they"
        " sound at another pitch, with gaps"
    )
