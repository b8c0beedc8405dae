"""Frame j of a clip is frame j of a plain player, however the clip was cut, and the index counts as many."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from reelweave.loader.dataset.samples.frames.shown_frames import count_shown, has_variable_rate, read_times
from reelweave.loader.errors import RunError
from reelweave.loader.read.decode import Decoder, decode_with_decord, decode_with_pyav
from tests.media import read_number
from tests.player import RATE, SIZE, cut_by_copy, encode_numbered, ffmpeg, numbers_shown
from tests.thorough import but

FRAMES = 60
CODECS = {
    "h264": "-c:v libx264 -g 12 -bf 2 -pix_fmt yuv420p",
    "h264, one group": "-c:v libx264 -g 500 -bf 3 -pix_fmt yuv420p",
    "h264, open groups": "-c:v libx264 -g 12 -bf 3 -x264-params open-gop=1:b-adapt=0:scenecut=0 -pix_fmt yuv420p",
    "h264, refreshed": "-c:v libx264 -x264-params intra-refresh=1:keyint=20:bframes=0 -pix_fmt yuv420p",
    "h264, interlaced": "-c:v libx264 -g 12 -flags +ilme+ildct -x264-params tff=1 -pix_fmt yuv420p",
    "hevc, open groups": "-c:v libx265 -x265-params keyint=12:min-keyint=12:log-level=none -pix_fmt yuv420p",
    "hevc, closed groups": "-c:v libx265 -x265-params keyint=12:open-gop=0:log-level=none -pix_fmt yuv420p",
    "vp8": "-c:v libvpx -g 12 -auto-alt-ref 1 -lag-in-frames 16 -pix_fmt yuv420p -b:v 400k",
    "vp9": "-c:v libvpx-vp9 -g 12 -auto-alt-ref 1 -lag-in-frames 16 -cpu-used 8 -pix_fmt yuv420p -b:v 400k",
    "av1": "-c:v libsvtav1 -g 12 -preset 12",
    "mpeg4": "-c:v mpeg4 -g 12 -bf 2 -q:v 3",
    "xvid": "-c:v libxvid -g 12 -bf 2 -q:v 3",
    "mjpeg": "-c:v mjpeg -q:v 3 -pix_fmt yuvj420p",
    "mpeg2": "-c:v mpeg2video -g 12 -bf 2 -q:v 3",
    "prores": "-c:v prores_ks",
}
FRAGMENTS = "-movflags frag_keyframe+empty_moov+default_base_moof"
CONTAINERS = {
    "mp4": "mp4",
    "mov": "mov",
    "mkv": "mkv",
    "webm": "webm",
    "avi": "avi",
    "ts": "ts",
    "fragments": "mp4",
}
UNKNOWN = (
    *product(set(CODECS) - {"vp8", "vp9", "av1"}, ["webm"]),
    *product(["vp8", "vp9", "av1", "mjpeg", "prores"], ["ts"]),
    *product(["vp8"], ["mp4", "mov", "fragments"]),
    *product(["vp9", "av1"], ["mov"]),
    *product(["prores"], ["mp4", "fragments"]),
    *product(["hevc, open groups", "hevc, closed groups"], ["avi"]),
)
"""Pairs that FFmpeg does not write, or cannot read again."""
PAIRS = [pair for pair in product(CODECS, CONTAINERS) if pair not in UNKNOWN]
ALWAYS = [
    ("h264, open groups", "mp4"),
    ("h264", "ts"),
    ("vp9", "webm"),
    ("xvid", "avi"),
]
OFTEN = [
    ("h264, refreshed", "mov"),
    ("hevc, open groups", "fragments"),
    ("h264, interlaced", "mp4"),
    ("vp8", "mkv"),
    ("av1", "mp4"),
    ("mpeg4", "mkv"),
    ("mjpeg", "avi"),
    ("mpeg2", "ts"),
    ("prores", "mov"),
]
CUTS = {
    "at a key frame": ("-ss 0.96", "-t 1"),
    "off key frames": ("-ss 1.23", ""),
    "off key frames at both ends": ("-ss 0.31", "-t 1.33"),
    "behind the input": ("", "-ss 0.7"),
    "with its time stamps": ("-ss 1.23", "-copyts"),
    "without an edit list": ("-ss 1.23", "-avoid_negative_ts make_zero"),
}
VARYING = r"select=not(between(n\,20\,32))*not(mod(n\,7)*between(n\,40\,55))"


def numbers_decoded(clip: bytes, numbers: range, decoder: Decoder) -> list[int]:
    video_CTHW = np.zeros((3, len(numbers), SIZE[1], SIZE[0]), np.uint8)
    decoder(clip, np.array(numbers), video_CTHW)
    return [read_number(picture) for picture in video_CTHW.transpose(1, 2, 3, 0)]


def check_like_a_player(path: Path, decoder: Decoder = decode_with_pyav) -> None:
    shown, clip = numbers_shown(path), path.read_bytes()
    if not shown:
        with pytest.raises(SourceError):
            probe(clip)
        return
    assert probe(clip).frames == count_shown(clip) == len(shown)
    for first, step in ((0, 1), (0, 3), (len(shown) // 3, 1), (len(shown) * 2 // 3, 2), (len(shown) - 1, 1)):
        numbers = range(first, len(shown), step)
        assert numbers_decoded(clip, numbers, decoder) == [shown[number] for number in numbers], (first, step)
    with pytest.raises(RunError, match=f"has {len(shown)} frames"):
        numbers_decoded(clip, range(len(shown), len(shown) + 1), decoder)


def clips_of(folder: Path, codec: str, container: str) -> list[Path]:
    """A whole clip, one of variable rate, and cuts of the whole one."""
    suffix, options = CONTAINERS[container], FRAGMENTS if container == "fragments" else ""
    encoder = f"{CODECS[codec]} {options}"
    whole = encode_numbered(folder / f"whole.{suffix}", FRAMES, encoder)
    clips = [whole, encode_numbered(folder / f"varying.{suffix}", FRAMES, encoder, VARYING)]
    for name, (before, after) in CUTS.items():
        cut = folder / f"{name}.{suffix}"
        # Behind the only key frame of a group nothing is left to copy.
        if cut_by_copy(whole, cut, before, f"{after} {options}", may_fail=codec == "h264, one group"):
            clips.append(cut)
    return clips


@pytest.mark.parametrize(("codec", "container"), but(ALWAYS, PAIRS, OFTEN))
def test_the_frames_are_those_of_a_player(tmp_path: Path, codec: str, container: str) -> None:
    for path in clips_of(tmp_path, codec, container):
        check_like_a_player(path)


@pytest.mark.parametrize(
    ("codec", "container"),
    but(
        [("h264, open groups", "mp4")], [pair for pair in PAIRS if pair[1] == "mp4" and pair[0] != "av1"], []
    ),
)
def test_the_frames_of_decord_are_those_of_a_player(tmp_path: Path, codec: str, container: str) -> None:
    pytest.importorskip("decord")
    for path in clips_of(tmp_path, codec, container):
        check_like_a_player(path, decode_with_decord)


def test_the_times_are_those_at_which_frames_are_shown(tmp_path: Path) -> None:
    constant = encode_numbered(tmp_path / "constant.mp4", FRAMES, CODECS["h264"])
    times_s = read_times(constant.read_bytes())
    assert times_s == pytest.approx(np.arange(FRAMES) / RATE)
    assert not has_variable_rate(times_s)
    assert not probe(constant.read_bytes()).variable_rate
    for suffix in ("mp4", "mkv", "ts"):
        varying = encode_numbered(tmp_path / f"varying.{suffix}", FRAMES, CODECS["h264"], VARYING)
        times_s = read_times(varying.read_bytes())
        assert times_s == pytest.approx(np.array(numbers_shown(varying)) / RATE, abs=2e-3)
        assert has_variable_rate(times_s)
        assert probe(varying.read_bytes()).variable_rate


def test_the_film_is_read_not_the_picture_before_it(tmp_path: Path) -> None:
    film = encode_numbered(tmp_path / "film.mkv", FRAMES, CODECS["h264"])
    cover, both = tmp_path / "cover.png", tmp_path / "both.mkv"
    ffmpeg(["-i", str(film), "-frames:v", "1", str(cover)])
    for aside in ("attached_pic", "0"):  # 0: a stream of one picture, as motion photos have
        joined = f"-i {cover} -i {film} -map 0:v -map 1:v -c copy -disposition:v:0 {aside} -y {both}"
        ffmpeg(joined.split())
        assert probe(both.read_bytes()).frames == count_shown(both.read_bytes()) == FRAMES
        assert numbers_decoded(both.read_bytes(), range(FRAMES), decode_with_pyav) == list(range(FRAMES))
