"""Sound of which packets are damaged: a few are silent, and of many the clip has none."""

import re
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.filters import loudness_dbfs
from tests.cutting import clips_of, curated, sound
from tests.media import read_numbers, write_video
from tests.player import ffmpeg
from tests.thorough import but


def spoil(path: Path, numbers: range) -> Path:
    """Give a film noise for some packets of its sound."""
    spoilt, sounds = path.with_name(f"spoilt{path.suffix}"), 0
    noise = np.random.default_rng(3).integers(0, 256, 1 << 16, np.uint8).tobytes()
    with av.open(str(path)) as source, av.open(str(spoilt), "w") as target:
        streams = [target.add_stream_from_template(stream) for stream in source.streams]
        for packet in source.demux():
            if not packet.size:
                continue
            stream = streams[packet.stream.index]
            if stream.type == "audio" and sounds in numbers:
                twin = av.Packet(noise[: packet.size])
                twin.pts, twin.dts, twin.duration = packet.pts, packet.dts, packet.duration
                twin.time_base = packet.time_base
                packet = twin
            sounds += stream.type == "audio"
            packet.stream = stream
            target.mux(packet)
    return spoilt


@pytest.mark.parametrize("suffix", but((".mp4",), (".mp4", ".mkv")))
def test_a_damaged_packet_of_sound_is_silent_and_said(suffix: str, tmp_path: Path) -> None:
    """It had cost the clip all of its sound."""
    path = write_video(tmp_path / f"a{suffix}", (40,), audio=True)
    (whole,) = clips_of(path)
    assert whole.audio == "copy:aac"
    assert np.array_equal(whole.audio_dbfs, loudness_dbfs(whole.data))
    (clip,) = clips_of(spoil(path, range(30, 31)))
    assert (clip.audio, clip.audio_fault) == ("aac", None)
    assert clip.audio_remark == "1 damaged packet of its sound is silent"
    heard, _, _ = sound(clip.data)
    quiet = np.flatnonzero(np.abs(heard[0, : len(heard[0]) // 256 * 256]).reshape(-1, 256).max(1) < 0.1) * 256
    inner = quiet[(quiet > 4096) & (quiet < heard.shape[1] - 8192)]
    assert 2 <= len(inner) <= 12  # one packet of 1024 samples, with its overlap
    assert read_numbers(clip.data) == list(range(40))


def test_damaged_sound_costs_a_clip_its_sound_alone(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (40,), audio=True)
    path = spoil(path, range(20, 30))
    (clip,) = clips_of(path)
    assert clip.audio == "none"
    assert re.fullmatch(r"its aac sound is damaged: \d+ of \d+ packets", clip.audio_fault or "")
    assert not len(clip.audio_dbfs)
    assert read_numbers(clip.data) == list(range(40))
    ((record, _),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.audio) == ("kept", f"none ({clip.audio_fault})")
    assert record.reason == "its aac sound is damaged, and left out"


@pytest.mark.parametrize("encoder", but(("ac3",), ("ac3", "flac")))
def test_a_damaged_packet_of_other_codecs_costs_no_more(encoder: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    drawn = (
        "-f lavfi -i testsrc2=s=160x128:r=25:d=4 -f lavfi -i sine=r=48000:d=4 -c:v libx264 -pix_fmt yuv420p"
    )
    ffmpeg(f"{drawn} -ac 2 -c:a {encoder} -y {path}".split())
    ((record, clip),) = curated(spoil(path, range(40, 41)), tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.audio) == ("kept", "aac")
    samples, rate, _ = sound(clip)
    loud = np.abs(samples[0, : 3 * rate // 480 * 480]).reshape(-1, 480).max(1) > 0.01
    assert loud.mean() > 0.9
    assert "damaged" in record.reason
