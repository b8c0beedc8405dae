"""Frame rate by the times of the first packets, where a header states another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from av.packet import Packet

_LEAST_GAPS = 12
_NEAR, _SHARE = 0.25, 0.8  # relative distance of gaps that are the same but for ticks, and their least share
_OTHER = 1.5  # ratio of two rates that are told apart


def packet_rate(packets: Iterable[Packet[Any]], stated: float, interlaced: bool) -> float | None:
    """Return the frames per second of the first packets, where these lie evenly and contradict the header.

    A field's duration as that of a frame in Matroska, a time base in H.264's own header, and empty chunks of AVI state
    two to four times as many frames.

    Args:
        packets: First packets of a stream.
        stated: Frames per second in the header.
        interlaced: Whether each field may be a packet.
    """
    coded = [packet for packet in packets if packet.size and packet.time_base is not None]
    stamps_s = {
        float(stamp * (packet.time_base or 0))
        for packet in coded
        if (stamp := packet.dts if packet.pts is None else packet.pts) is not None
    }
    gaps_s = np.diff(sorted(stamps_s))
    if len(gaps_s) < _LEAST_GAPS:
        return None
    usual_s = float(np.median(gaps_s))
    if (np.abs(gaps_s - usual_s) <= _NEAR * usual_s).mean() < _SHARE:
        return None
    measured = 1 / usual_s
    if 1 / _OTHER < measured / stated < _OTHER or (interlaced and measured > stated):
        return None
    return measured
