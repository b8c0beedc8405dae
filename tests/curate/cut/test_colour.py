"""Clips show the colours of their sources to a reader that believes their tags."""

import io
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from reelweave.curate.cut import CutConfig
from reelweave.curate.models.clip_frames import clip_pictures
from reelweave.loader.dataset.colour.light import light_of
from reelweave.loader.read.decode import decode
from tests.colours import BT601, BT709, BT2020_SDR, HLG, PQ, Tags, blocks, centres, shown, write_blocks
from tests.cutting import clips_of, curated
from tests.media import write_video
from tests.thorough import but, thorough

_WIDE = Fraction(4, 3)
SOURCES: dict[str, tuple[str, Tags, dict[str, Any]]] = {
    "BT.601": ("yuv420p", BT601, {}),
    "no tags": ("yuv420p", Tags(), {}),
    "BT.709, full range": ("yuvj420p", Tags(1, 1, 1, 2), {}),
    "BT.709, 4:2:2": ("yuv422p", BT709, {}),
    "BT.709, 4:4:4 of full range and 10 bits": ("yuv444p10le", Tags(1, 1, 1, 2), {}),
    "BT.709, anamorphic": ("yuv420p", BT709, {"aspect": _WIDE}),
    "BT.2020 SDR, 10 bits": ("yuv420p10le", BT2020_SDR, {}),
    "BT.2020 SDR, 4:2:2": ("yuv422p", BT2020_SDR, {}),
    "BT.2020 SDR, 4:2:2 of 10 bits, anamorphic": ("yuv422p10le", BT2020_SDR, {"aspect": _WIDE}),
    "SMPTE 240M": ("yuv420p", Tags(7, 7, 7, 1), {}),
    "Display P3 with sRGB's curve": ("yuv420p", Tags(12, 13, 1, 1), {}),
    "RGB": ("gbrp", Tags(), {"codec": "libx265", "options": {"x265-params": "lossless=1:log-level=none"}}),
}
MATRIX_OF = {"RGB": 1}


@pytest.mark.parametrize(
    "kind",
    but(
        ("BT.709, 4:2:2", "BT.709, full range", "BT.2020 SDR, 10 bits", "RGB", "BT.709, anamorphic"), SOURCES
    ),
)
def test_colours_and_tags_of_a_source_are_kept(kind: str, tmp_path: Path) -> None:
    pix_fmt, tags, more = SOURCES[kind]
    colours = blocks()
    path = write_blocks(tmp_path / "a.mp4", colours, pix_fmt, tags, **more)
    (clip,) = clips_of(path)
    with av.open(io.BytesIO(clip.data)) as container:
        context = container.streams.video[0].codec_context  # as the container says
        frame = list(container.decode(video=0))[5]
    seen = Tags.of(frame)
    matrix = MATRIX_OF.get(kind, tags.matrix)
    assert (seen.primaries, seen.transfer, seen.matrix) == (tags.primaries, tags.transfer, matrix)
    assert seen.range == 1 or (seen.range == tags.range == 0)
    said = Tags(
        int(context.color_primaries),
        int(context.color_trc),
        int(context.colorspace),
        int(context.color_range),
    )
    assert said == seen
    assert np.abs(shown(frame) - colours).max() < 4 / 255
    trained = np.empty((3, 1, frame.height, frame.width), np.uint8)
    decode(clip.data, np.array([5]), trained)
    assert np.abs(centres(trained[:, 0].transpose(1, 2, 0)) / 255 - colours).max() < 5 / 255


_MASTERED = (
    "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,50):max-cll=1000,400"
)
_X265 = {"codec": "libx265", "options": {"crf": "4", "x265-params": f"log-level=none:{_MASTERED}"}}
_PQ_OPTIONS = {
    "crf": "12",
    "x265-params": "log-level=none:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:range=limited",
}
DEEP: dict[str, tuple[str, Tags, dict[str, Any]]] = {
    "PQ": ("yuv420p10le", PQ, _X265),
    "PQ, 4:2:2 of 12 bits and full range": ("yuv422p12le", Tags(9, 16, 9, 2), _X265),
    "HLG, anamorphic": ("yuv420p10le", HLG, {**_X265, "aspect": _WIDE}),
    "HLG in 8 bits": ("yuv420p", HLG, {}),
    "PQ in RGB": ("gbrp10le", Tags(9, 16, 0, 1), _X265),
    "BT.2020 SDR": ("yuv420p10le", BT2020_SDR, {}),
    "BT.709, 4:4:4": ("yuv444p10le", BT709, {}),
}


@pytest.mark.parametrize("kind", but(("PQ", "HLG, anamorphic", "BT.2020 SDR"), DEEP))
def test_deep_clips_keep_colour_depth_and_light_of_their_source(kind: str, tmp_path: Path) -> None:
    pix_fmt, tags, more = DEEP[kind]
    colours = blocks(0.2, 0.6)
    path = write_blocks(tmp_path / "a.mp4", colours, pix_fmt, tags, **more)
    (clip,) = clips_of(path, config=CutConfig(max_bits=10, verify="whole"))
    with av.open(io.BytesIO(clip.data)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.codec_tag, stream.codec_context.pix_fmt) == ("hvc1", "yuv420p10le")
        frames = list(container.decode(stream))
    assert len(frames) == clip.frames == 10
    seen = Tags.of(frames[5])
    matrix = 9 if pix_fmt.startswith("gbr") else tags.matrix
    assert seen == Tags(tags.primaries, tags.transfer, matrix, 1)
    assert (
        np.abs(shown(frames[5]) - colours).mean() < (0.5 if "10" in pix_fmt or "12" in pix_fmt else 0.7) / 255
    )
    light = light_of(frames[0])
    assert light == clip.geometry.light
    if more.get("codec"):
        assert light is not None
        assert light.primaries == tuple(
            (Fraction(x, 50000), Fraction(y, 50000))
            for x, y in ((34000, 16000), (13250, 34500), (7500, 3000), (15635, 16450))
        )
        assert (light.nits, light.levels) == ((Fraction(5, 1000), 1000), (1000, 400))


@pytest.mark.parametrize("kind", but(("PQ",), DEEP))
def test_training_sees_a_deep_clip_as_its_8_bit_one(kind: str, tmp_path: Path) -> None:
    pix_fmt, tags, more = DEEP[kind]
    path = write_blocks(tmp_path / "a.mp4", blocks(0.38, 0.5), pix_fmt, tags, **more)
    pictures = []
    for max_bits in (8, 10):
        (clip,) = clips_of(path, config=CutConfig(max_bits=max_bits, crf=4))
        picture = np.empty((3, 1, clip.geometry.height, clip.geometry.width), np.uint8)
        decode(clip.data, np.array([5]), picture)
        if max_bits == 10:
            small = np.empty((3, 1, clip.geometry.height // 2, clip.geometry.width // 2), np.uint8)
            decode(clip.data, np.array([5]), small)
            shrunk = centres(small[:, 0].transpose(1, 2, 0).astype(float))
        pictures.append(centres(picture[:, 0].transpose(1, 2, 0).astype(float)))
    assert np.abs(pictures[1] - pictures[0]).max() < 6  # a wrong matrix or transfer: 20 and more
    assert np.abs(pictures[1] - pictures[0]).mean() < 1
    assert np.abs(shrunk - pictures[1]).mean() < 2


def test_decord_leaves_hdr_to_pyav(tmp_path: Path) -> None:
    pytest.importorskip("decord")
    path = write_blocks(tmp_path / "a.mp4", blocks(), "yuv420p", HLG, frames=3)
    ours, asked = np.empty((2, 3, 1, 96, 128), np.uint8)
    decode(path.read_bytes(), np.array([1]), ours)
    decode(path.read_bytes(), np.array([1]), asked, decoder="decord")
    assert np.array_equal(asked, ours)


@thorough
def test_threads_map_hdr_side_by_side(tmp_path: Path) -> None:
    paths = [
        write_blocks(tmp_path / f"{tags.transfer}.mp4", blocks(), "yuv420p10le", tags, **_X265)
        for tags in (PQ, HLG)
    ]

    def decoded(path: Path) -> np.ndarray:
        picture = np.empty((3, 2, 96, 128), np.uint8)
        decode(path.read_bytes(), np.arange(2), picture)
        return picture

    alone = [decoded(path) for path in paths]
    with ThreadPoolExecutor(2) as threads:
        for number, picture in enumerate(threads.map(decoded, paths * 4)):
            assert np.array_equal(picture, alone[number % 2])


def test_a_source_of_8_bits_gives_the_same_clip_either_way(tmp_path: Path) -> None:
    path = write_blocks(tmp_path / "a.mp4", blocks(), "yuv420p", BT709)
    plain, wide = (clips_of(path, config=CutConfig(max_bits=bits))[0] for bits in (8, 10))
    assert wide.data == plain.data


def test_a_deep_source_is_scored_as_in_8_bits_under_another_key(tmp_path: Path) -> None:
    path = write_video(
        tmp_path / "a.mp4", (52,), size=(96, 64), codec="libx265", pix_fmt="yuv420p10le", options=_PQ_OPTIONS
    )
    found = {
        (bits, ahead): curated(path, tmp_path / f"{bits} {ahead}", cut={"max_bits": bits, "ahead_mb": ahead})
        for bits, ahead in ((8, 512), (10, 512), (10, 0))
    }
    plain, deep = found[8, 512], found[10, 512]
    assert [data for _, data in deep] == [data for _, data in found[10, 0]]
    assert len(deep) == len(plain) == 1
    for (before, _), (after, data) in zip(plain, deep, strict=True):
        assert after.state == "kept"
        assert (after.key, after.frames) == (before.key, before.frames)
        assert after.clip_id != before.clip_id
        assert after.scores == pytest.approx(before.scores, abs=0.05)
        (pictures, _) = clip_pictures(data, size=64, fps=2)
        assert pictures.dtype == np.uint8
