"""Sound of a film's end, where packets do not say how long they last, and clips that no sound reaches."""

from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.cut import CutConfig
from tests.cutting import clips_of, curated, sound
from tests.player import ffmpeg
from tests.thorough import but

KINDS = {
    "WavPack in Matroska": ("a.mkv", "wavpack -frame_size 48000"),
    "TrueHD in Matroska": ("a.mkv", "truehd -strict -2"),
    "DTS in Matroska": ("a.mkv", "dca -strict -2"),
    "FLAC in Matroska": ("a.mkv", "flac -frame_size 32768"),
    "FLAC in Ogg": ("a.ogv", "flac -frame_size 32768"),
    "WMA in ASF": ("a.asf", "wmav2"),
}


def film(path: Path, encoder: str, sound_s: float = 7, rate: int = 48000) -> Path:
    """Write a film of 7 s with a tone of ``sound_s`` seconds; packets in Matroska do not say how long they last."""
    video = "libtheora -q:v 5" if path.suffix == ".ogv" else "mpeg4 -q:v 5"
    ffmpeg(
        f"-f lavfi -i testsrc2=s=160x128:r=25:d=7 -f lavfi -i sine=r={rate}:d={sound_s} -c:v {video} -bf 0 -g 25"
        f" -ac 1 -c:a {encoder} -y {path}".split()
    )
    if path.suffix != ".mkv":
        return path
    silent = path.with_name("without.mkv")
    with av.open(str(path)) as source, av.open(str(silent), "w") as target:
        streams = [target.add_stream_from_template(stream) for stream in source.streams]
        for packet in source.demux():
            if packet.size:
                packet.stream = streams[packet.stream.index]
                packet.duration = 0
                target.mux(packet)
    return silent


@pytest.mark.parametrize("kind", but(("WavPack in Matroska",), KINDS))
def test_a_clip_within_the_last_packet_has_its_sound(kind: str, tmp_path: Path) -> None:
    name, encoder = KINDS[kind]
    layout = " -ac 2" if "truehd" in encoder else ""
    path = film(tmp_path / name, encoder + layout)
    clips = clips_of(path, [(100, 156), (157, 172)], CutConfig())
    for clip in clips:
        samples, rate, begin = sound(clip.data)
        heard = samples[0, 2000 - begin : round(clip.frames / 25 * rate) - begin - 2000]
        assert np.abs(heard[: len(heard) // 500 * 500]).reshape(-1, 500).max(1).min() > 0.05, kind


def test_a_film_of_long_packets_is_not_short_of_sound(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mkv", "wavpack -frame_size 54000", rate=12000)
    with av.open(str(path)) as container:
        assert not any(packet.duration for packet in container.demux(audio=0))
    ((record, _),) = curated(path, tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.audio, record.reason) == ("kept", "aac", "")


@pytest.mark.parametrize("encoder", ["wavpack", "aac"])
def test_a_clip_that_no_sound_reaches_says_so(encoder: str, tmp_path: Path) -> None:
    path = film(tmp_path / "a.mkv", encoder, sound_s=2)
    first, last = clips_of(path, [(0, 40), (90, 170)], CutConfig())
    assert first.audio != "none"
    assert first.audio_remark == ""
    assert (last.audio, last.audio_remark) == (
        "none",
        "no sound of its source lies beside it, by its time stamps",
    )
    assert last.audio_fault is None


def test_a_film_that_is_cut_off_within_a_packet_keeps_its_sound(tmp_path: Path) -> None:
    """The last packet is left out, and said; it had cost the clip all of its sound."""
    path = film(tmp_path / "a.wmv", "wmav2")
    data = path.read_bytes()
    for size in range(len(data) * 6 // 10, len(data), 200):
        path.write_bytes(data[:size])
        with av.open(str(path)) as container:
            sizes = [packet.size for packet in container.demux(audio=0) if packet.size]
        if sizes[-1] < sizes[0] // 2:
            break
    record, clip = curated(path, tmp_path / "out", spans={"max_clip_s": 20})[0]
    assert (record.state, record.audio) == ("kept", "aac"), record.audio
    assert "the last packet of its sound is damaged, and left out" in record.reason
    assert np.abs(sound(clip)[0]).max() > 0.01
