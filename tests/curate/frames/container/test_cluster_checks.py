"""Damage of Matroska that has checksums, as FFmpeg writes it, is known where codecs conceal it."""

import io
from pathlib import Path

import av
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.container.cluster_checks import ClusterChecks
from reelweave.curate.frames.source import SourceError
from tests.cutting import curated
from tests.player import ffmpeg
from tests.thorough import but

ENCODERS = {
    "HEVC": "libx265 -x265-params log-level=none:keyint=25:scenecut=0",
    "VP8": "libvpx -deadline realtime -cpu-used 8 -b:v 1M -g 25",
    "VP9": "libvpx-vp9 -deadline realtime -cpu-used 8 -b:v 1M -g 25 -pix_fmt yuv420p10",
}


def film(path: Path, codec: str) -> Path:
    """Write a film of 8 s in clusters of 2 s, whose encoder's options are those of a codec."""
    words = "-f lavfi -i testsrc2=s=192x128:r=25:d=8 -cluster_time_limit 2000 -c:v"
    ffmpeg([*words.split(), *ENCODERS[codec].split(), "-y", str(path)])
    return path


def flip(path: Path, packet_index: int) -> None:
    """Flip a bit in the middle of a packet."""
    with av.open(str(path)) as container:
        packet = bytes([packet for packet in container.demux(video=0) if packet.size][packet_index])
    data = bytearray(path.read_bytes())
    data[data.index(packet) + len(packet) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("codec", but(("HEVC", "VP8"), ENCODERS))
def test_a_flipped_bit_fails_its_cluster_and_no_other(codec: str, tmp_path: Path) -> None:
    path = film(tmp_path / "a.mkv", codec)
    settings = {"shots": {"detector": "fixed", "fixed": {"stride_s": 99}}, "spans": {"min_clip_s": 0.5}}
    whole = [record for record, _ in curated(path, tmp_path / "whole", **settings)]
    assert [(record.state, record.reason) for record in whole] == [("kept", "")]
    assert probe(path.read_bytes()).frames == 200
    flip(path, 85)
    records = [record for record, _ in curated(path, tmp_path / "out", **settings)]
    assert [record.state for record in records] == ["kept", "failed", "kept"]
    assert records[1].reason.startswith("a checksum of its Matroska is wrong")
    assert records[1].start_s <= 85 / 25 < records[1].end_s
    assert records[1].end_s - records[1].start_s < 3.5
    with pytest.raises(SourceError, match="a checksum of its Matroska is wrong"):
        probe(path.read_bytes())


class _Watched(io.BytesIO):
    """File that keeps the first byte that was read, and their number."""

    first, count = 1 << 60, 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.first = min(self.first, self.tell())
        data = super().read(size)
        self.count += len(data)
        return data


def test_a_film_that_is_entered_late_is_not_read_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a long film, which may lie in a bucket, each read their own stretch."""
    monkeypatch.setattr("reelweave.curate.frames.container.cluster_checks._BLOCK_BYTES", 1 << 12)
    path = film(tmp_path / "a.mkv", "VP8")
    flip(path, 185)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        for begin in (0, 101, 151):
            watched = _Watched(path.read_bytes())
            checks = ClusterChecks(watched, stream)
            damaged = [index for index in range(begin, 200) if checks.is_damaged(packets[index])]
            assert damaged == list(range(175, 200))
            # The stretch itself, and as far as its cluster reaches before it.
            assert begin == 0 or watched.first > packets[begin - 51].pos
            assert watched.count < 3 * (len(watched.getvalue()) - (packets[max(0, begin - 51)].pos or 0))
        assert checks.is_damaged(packets[199])
        assert not checks.is_damaged(packets[20]), "also back again"
