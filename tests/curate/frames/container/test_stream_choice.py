"""Clips have the sound that belongs to their pictures: of their programme, and the main track of it."""

import re
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset.samples.frames.shown_frames import decoded_frames
from tests.curate.run.test_run import SMALL
from tests.cutting import curated, sound
from tests.player import ffmpeg
from tests.thorough import but

_SMALL, _LARGE = "testsrc2=s=96x64:r=25:d=2.4", "testsrc2=s=160x128:r=25:d=2.4"
_ENCODERS = "-c:v libx264 -pix_fmt yuv420p -c:a mp2 -y"
_MAIN, _OTHER = 3000, 300
AUDIO_DESCRIPTION = "-map 0 -map 2 -map 1 -disposition:a:0 visual_impaired"


def film(path: Path, words: str, *pictures: str) -> Path:
    """Pictures, 3000 Hz and 300 Hz, in streams and programmes as FFmpeg's words say."""
    tones = [f"sine=f={tone}:d=2.4" for tone in (_MAIN, _OTHER)]
    inputs = [word for source in (*pictures, *tones) for word in ("-f", "lavfi", "-i", source)]
    ffmpeg([*inputs, *words.split(), *_ENCODERS.split(), str(path)])
    return path


def tone(clip: bytes) -> int:
    """The loudest frequency of a clip's sound, Hz, to the next ten."""
    samples, rate, _ = sound(clip)
    strength = np.abs(np.fft.rfft(samples[0][rate // 2 : rate // 2 + rate]))
    return round(float(strength.argmax()) / 10) * 10


def kept(path: Path) -> tuple[str, str, int | None]:
    """Sound, remark and tone of the one clip of a film."""
    ((record, clip),) = curated(path, path.with_suffix(".out"), stitch={"enabled": False})
    assert record.state == "kept", record
    return record.audio, record.reason, None if record.audio.startswith("none") else tone(clip)


TWO = "-program program_num=1:st=0:st=1 -program program_num=2:st=2:st=3"
PROGRAMMES = {
    "the larger picture is second": (
        f"-map 0 -map 3 -map 1 -map 2 {TWO}",
        (_SMALL, _LARGE),
        "one of 2 streams of pictures is kept, the one that players show",
    ),
    "the radio is first": (
        "-map 2 -map 0 -map 1 -program program_num=1:st=0 -program program_num=2:st=1:st=2",
        (_LARGE,),
        "",
    ),
}


@pytest.mark.parametrize("name", PROGRAMMES)
def test_sound_is_of_the_programme_of_the_pictures(name: str, tmp_path: Path) -> None:
    words, pictures, remark = PROGRAMMES[name]
    assert kept(film(tmp_path / "film.ts", words, *pictures)) == ("aac", remark, _MAIN)


def test_a_programme_without_sound_gets_none_of_another(tmp_path: Path) -> None:
    words = "-map 0 -map 1 -program program_num=1:st=0 -program program_num=2:st=1"
    path = film(tmp_path / "film.ts", words, _LARGE)
    assert kept(path) == ("none (the sound in the file belongs to other programmes)", "", None)
    assert probe(path.read_bytes()).audio == "none"
    notes = curate([str(path)], str(tmp_path / "dataset"), SMALL).notes
    assert (
        "1 clip has no sound: the sound in the file belongs to other programmes (index.parquet, audio)"
        in notes
    )


TRACKS = {
    "described.ts": (AUDIO_DESCRIPTION, "second of 2 sound tracks is kept (another is audio description)"),
    "described.mkv": (AUDIO_DESCRIPTION, "second of 2 sound tracks is kept (another is audio description)"),
    "description by default.mkv": (
        "-map 0 -map 2 -map 1 -disposition:a:0 default+visual_impaired -disposition:a:1 0",
        "second of 2 sound tracks is kept (another is audio description)",
    ),
    "commentary.mkv": (
        "-map 0 -map 2 -map 1 -disposition:a:0 comment -disposition:a:1 0",
        "second of 2 sound tracks is kept (another is a commentary)",
    ),
    "default.mkv": (
        "-map 0 -map 2 -map 1 -disposition:a:0 0 -disposition:a:1 default",
        "second of 2 sound tracks is kept (the default one)",
    ),
    "original.mkv": (
        "-map 0 -map 2 -map 1 -disposition:a:0 0 -disposition:a:1 original",
        "second of 2 sound tracks is kept",
    ),
    "equal.mkv": ("-map 0 -map 1 -map 2 -disposition:a 0", "first of 2 sound tracks is kept"),
    "only described.mkv": ("-map 0 -map 1 -disposition:a:0 visual_impaired", "only"),
}


@pytest.mark.parametrize(
    "name", but(("described.ts", "commentary.mkv", "equal.mkv", "only described.mkv"), TRACKS)
)
def test_the_main_track_is_kept_and_the_choice_said(name: str, tmp_path: Path) -> None:
    words, said = TRACKS[name]
    expected = "its only sound is marked as audio description" if said == "only" else f"the {said}"
    assert kept(film(tmp_path / name, words, _LARGE)) == ("aac", expected, _MAIN)


@pytest.mark.parametrize("name", but(("cover_first.mkv",), ["cover_first.mkv", "cover_first.mp4"]))
def test_a_short_film_is_shown_behind_a_cover_that_is_the_first_track(name: str, tmp_path: Path) -> None:
    cover, slow, path = tmp_path / "cover.jpg", tmp_path / "slow.mkv", tmp_path / name
    ffmpeg(["-f", "lavfi", "-i", "testsrc=s=640x360", "-frames:v", "1", str(cover)])
    ffmpeg(["-f", "lavfi", "-i", "testsrc2=s=96x64:r=1:d=10", *_ENCODERS.split(), str(slow)])
    ffmpeg(["-i", str(cover), "-i", str(slow), "-map", "0", "-map", "1", "-c", "copy", str(path)])
    ((record, _),) = curated(path, tmp_path / "out", stitch={"enabled": False})
    assert (record.state, record.start_s, record.end_s, record.frames) == ("kept", 0, 10, 10)
    media = probe(path.read_bytes())
    assert (media.frames, media.width, media.height) == (10, 96, 64)
    assert sum(1 for _ in decoded_frames(path.read_bytes())) == 10


@pytest.mark.parametrize("hidden", [0, 1])
def test_a_track_of_an_unknown_codec_is_passed_over_and_said(hidden: int, tmp_path: Path) -> None:
    """Phones put spatial sound (APAC) beside AAC, at times as the default."""
    path = film(tmp_path / "a.mov", "-map 0 -map 1 -map 2", _LARGE)
    data = path.read_bytes()
    entry = [match.end() for match in re.finditer(b"stsd.{12}(?=\\.mp2)", data, re.DOTALL)][hidden]
    path.write_bytes(data[:entry] + b"apac" + data[entry + 4 :])
    _, said, heard = kept(path)
    ordinal, tone_hz = (("second", _OTHER), ("first", _MAIN))[hidden]
    assert said.startswith(f"the {ordinal} of 2 sound tracks is kept")
    assert said.endswith("another has a codec that is not known here)")
    assert heard == tone_hz
