"""Films of which segments were removed by copying packets, as tools that cut out sponsors do it."""

from collections.abc import Sequence
from pathlib import Path

import av

_SAME_TIME = frozenset({"matroska"})
"""Muxers that take a decoding time twice; others get the next tick."""


def removed(source: Path, path: Path, pieces: Sequence[tuple[float, float | None]]) -> Path:
    """Write the pieces [begin, end) in seconds of a film one after the other, with FFmpeg's concat demuxer.

    Each piece begins at the key frame before it, and ``ffmpeg -c copy`` squeezes what lies before the piece: where
    decoding times do not rise they become the next possible ones.
    """
    listed = path.with_suffix(".ffconcat")
    lines = ["ffconcat version 1.0"]
    for begin, end in pieces:
        lines += [f"file '{source}'", f"inpoint {begin}", *([] if end is None else [f"outpoint {end}"])]
    listed.write_text("\n".join(lines))
    options = {"safe": "0"}
    with av.open(str(listed), format="concat", options=options) as film, av.open(str(path), "w") as target:
        streams = {one.index: target.add_stream_from_template(one) for one in film.streams}
        least = int(target.format.name not in _SAME_TIME)
        last: dict[int, int] = {}
        for packet in film.demux():
            if not packet.size or packet.dts is None or packet.pts is None:
                continue
            stream = streams[packet.stream.index]
            if not last:
                target.start_encoding()
            packet.stream = stream
            tick = stream.time_base
            assert tick is not None
            stamps = (packet.pts, packet.dts, packet.duration or 0)
            pts, dts, packet.duration = (round(one * packet.time_base / tick) for one in stamps)
            earliest = last.get(stream.index, dts) + (least if stream.index in last else 0)
            if dts < earliest:
                pts, dts = max(pts, earliest), earliest
            last[stream.index] = dts
            packet.time_base, packet.pts, packet.dts = tick, pts, dts
            target.mux_one(packet)
    listed.unlink()
    return path
