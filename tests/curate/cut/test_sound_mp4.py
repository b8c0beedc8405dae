"""Sound of MP4 whose header or whose fragments say less than a clip needs: no configuration, gaps as long packets."""

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from reelweave.curate.cut.audio import SoundSlice, joined_lead, slices_of
from tests.cutting import clips_of, sound
from tests.media import write_video
from tests.player import ffmpeg

RATE = 48000


def film(folder: Path, words: str, seconds: float = 2.4) -> Path:
    """Numbered frames with reordering beside a tone of 1 kHz that sounds for the first 40 ms of every half second."""
    pictures = write_video(folder / "pictures.mp4", (round(25 * seconds),), options={"g": "10", "bf": "3"})
    tone = f"aevalsrc='0.6*sin(2000*PI*t)*lt(mod(t,0.5),0.04)':s={RATE}:d={seconds}"
    path = folder / "film.mp4"
    ffmpeg(f"-i {pictures} -f lavfi -i {tone} -c:v copy -c:a aac {words} -y {path}".split())
    return path


def without_configuration(path: Path) -> Path:
    """The same film, whose header of AAC lacks its DecoderSpecificInfo (tag 5): ISO/IEC 14496-1, 7.2.6.7."""
    data = bytearray(path.read_bytes())
    at = data.index(b"esds") + 8
    assert (data[at], data[at + 8], data[at + 26]) == (3, 4, 5)
    data[at + 26] = 0x13  # a tag that no reader knows
    other = path.with_name("bare.mp4")
    other.write_bytes(data)
    return other


def configured(data: bytes) -> bool:
    with av.open(io.BytesIO(data)) as container:
        return bool(container.streams.audio[0].codec_context.extradata)


def tones(data: bytes) -> list[int]:
    """Where tones begin, in samples of the clip, each to a window of 5 ms."""
    samples, rate, begin = sound(data)
    assert rate == RATE
    loud = np.abs(samples[0]).reshape(-1)[: len(samples[0]) // 240 * 240].reshape(-1, 240).max(1) > 0.2
    starts = np.flatnonzero(loud & ~np.append(False, loud[:-1]))
    return [begin + int(start) * 240 for start in starts]


def test_aac_without_its_configuration_is_encoded_so_that_browsers_play_it(tmp_path: Path) -> None:
    path = without_configuration(film(tmp_path, ""))
    assert not configured(path.read_bytes())
    (clip,) = clips_of(path)
    assert clip.audio == "aac"
    assert configured(clip.data)
    assert np.allclose(tones(clip.data), [0, 24000, 48000, 72000, 96000], atol=480)


def test_aac_that_states_its_configuration_is_copied(tmp_path: Path) -> None:
    (clip,) = clips_of(film(tmp_path, ""))
    assert (clip.audio, configured(clip.data)) == ("copy:aac", True)


def test_a_gap_behind_the_first_packet_takes_no_sound_of_the_clip(tmp_path: Path) -> None:
    """Fragments without an edit list begin with a packet of sound that lasts until the first picture."""
    (clip,) = clips_of(film(tmp_path, "-movflags frag_keyframe+empty_moov"))
    assert clip.audio == "copy:aac"
    assert np.allclose(tones(clip.data), [0, 24000, 48000, 72000, 96000], atol=480)


def test_a_packet_that_lasts_until_the_next_one_leaves_a_gap() -> None:
    times = [(0, 1024), (1024, 9000), (10024, 1024), (11048, 1024)]
    given = (times, Fraction(1, RATE), Fraction(0), RATE, 1024)
    assert [packet.samples for packet in slices_of(*given, holds=True)] == [1024] * 4
    assert slices_of(*given)[1].samples == 9000


def test_packets_before_a_clip_are_laid_end_to_end() -> None:
    lead = [SoundSlice(-9000, 1024), SoundSlice(-3200, 1024), SoundSlice(-512, 1024), SoundSlice(512, 1024)]
    assert [packet.begin for packet in joined_lead(lead, 1024)] == [-2560, -1536, -512, 512]
    late = [SoundSlice(-9000, 1024), SoundSlice(-3200, 1024), SoundSlice(300, 1024)]
    assert [packet.begin for packet in joined_lead(late, 1024)] == [-2048, -1024, 300]
