"""libvpx gets no frame of VP9 that is larger than what is decoded, hidden ones included."""

from pathlib import Path

import av
import pytest
from av.packet import Packet

from reelweave.curate.foreign.probe import probe
from reelweave.loader.dataset.samples.frames.video_stream import decode_stream, open_clip
from reelweave.loader.dataset.samples.frames.vp9_sizes import bound_packet, frames_of, stated_size
from tests.cutting import curated
from tests.media import write_video
from tests.player import ffmpeg


@pytest.fixture
def film(tmp_path: Path) -> Path:
    options = {"g": "25", "cpu-used": "8"}
    return write_video(tmp_path / "a.webm", (30,), size=(176, 144), codec="libvpx-vp9", options=options)


def packets(film: Path) -> list[bytes]:
    with av.open(str(film)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def grown(frame: bytes) -> bytes:
    """A key frame whose header states 65536 x 65536 pixels: VP9 specification, 6.2."""
    bits = int.from_bytes(frame[:12], "big")
    # Behind 8 bits of the frame, 24 of synchronization and 4 of colours, in profile 0.
    sizes = ((1 << 32) - 1) << (96 - 36 - 32)
    return (bits | sizes).to_bytes(12, "big") + frame[12:]


def test_key_frames_state_their_size_and_others_have_that_of_a_reference(film: Path) -> None:
    sizes = [stated_size(frame) for packet in packets(film) for frame in frames_of(packet)]
    assert sizes[0] == (176, 144, True)
    assert sizes.count(None) >= 28
    assert {size for size in sizes if size} == {(176, 144, True)}


def test_a_frame_of_any_size_is_refused_before_it_is_decoded(film: Path) -> None:
    first = packets(film)[0]
    assert stated_size(grown(first)) == (65536, 65536, True)
    with pytest.raises(av.error.InvalidDataError, match="65536x65536"):
        bound_packet(Packet(grown(first)))
    data = film.read_bytes()
    at = data.find(first)
    huge = data[:at] + grown(first) + data[at + len(first) :]
    with open_clip(huge) as (container, stream), pytest.raises(av.error.InvalidDataError):
        next(decode_stream(container, stream))


def test_a_frame_behind_another_without_an_index_is_none(film: Path) -> None:
    first = packets(film)[0]
    single = bytes(bound_packet(Packet(first + grown(first))))
    assert [len(frame) for frame in frames_of(single)] == [2 * len(first)]
    assert bytes(bound_packet(Packet(single))) == single


def test_packets_that_an_edit_list_leaves_out_show_no_frame(film: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.mp4"
    options = {"g": "25", "cpu-used": "8"}
    whole = write_video(tmp_path / "whole.mp4", (75,), codec="libvpx-vp9", options=options)
    ffmpeg(["-ss", "1.3", "-i", str(whole), "-c", "copy", "-y", str(cut)])
    data = cut.read_bytes()
    with av.open(str(cut)) as container:
        assert any(packet.is_discard for packet in container.demux(video=0))
    with open_clip(data) as (container, stream):
        wanted = [frame.pts for frame in container.decode(stream)]
    with open_clip(data) as (container, stream):
        assert [frame.pts for frame in decode_stream(container, stream)] == wanted
    ((record, _),) = curated(cut, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.frames) == ("kept", len(wanted))
    assert probe(data).frames == len(wanted)
