"""A frame whose packet the end of the file cuts off is damage, and becomes no clip of its own."""

from pathlib import Path

import av
import pytest

from tests.cutting import curated
from tests.media import write_video
from tests.thorough import beyond

CODECS = {
    "mjpeg.mov": ("mjpeg", "yuvj420p", {"movflags": "faststart"}),
    "prores.mov": ("prores_ks", "yuv422p10le", {"movflags": "faststart"}),
    "mjpeg.avi": ("mjpeg", "yuvj420p", {}),
    "h264.mov": ("libx264", "yuv420p", {"movflags": "faststart"}),
}


@pytest.mark.parametrize("name", beyond(2, list(CODECS)))
def test_half_a_last_frame_is_counted_as_cut_off(name: str, tmp_path: Path) -> None:
    codec, pix_fmt, movflags = CODECS[name]
    options = {"bf": "0"} if codec == "libx264" else None
    path = tmp_path / f"whole{Path(name).suffix}"
    write_video(path, (75,), codec=codec, pix_fmt=pix_fmt, options=options)
    whole = tmp_path / name
    with av.open(str(path)) as source, av.open(str(whole), "w", options=movflags) as copy:
        stream = copy.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                copy.mux(packet)
    with av.open(str(whole)) as container:
        ends = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    ((record, _),) = curated(whole, tmp_path / "whole", spans={"min_clip_s": 0.5})
    assert (record.state, record.frames) == ("kept", 75)
    last = max(ends)
    cut = tmp_path / f"cut{whole.suffix}"
    cut.write_bytes(whole.read_bytes()[: last[0] + last[1] // 2])
    records = [record for record, _ in curated(cut, tmp_path / "cut", spans={"min_clip_s": 0.02})]
    kept = [record for record in records if record.state == "kept"]
    assert [record.end_s for record in kept] == [pytest.approx(74 / 25)]
    assert any(
        record.state == "failed" and "cut off" in record.reason and record.start_s == pytest.approx(74 / 25)
        for record in records
    )
