"""Finished pictures: upright, square pixels, 8-bit 4:2:0 SDR; and full pictures of interlaced frames."""

import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import VideoFrame

from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.interlace import deinterlace
from reelweave.curate.frames.picture import Finisher, Geometry, geometry
from reelweave.curate.frames.source import open_video
from reelweave.loader.dataset.colour import hdr
from tests.media import numbered_frame, read_number

SIZE = (160, 128)


def plain(number: int, pix_fmt: str = "yuv420p", size: tuple[int, int] = SIZE) -> VideoFrame:
    frame = VideoFrame.from_ndarray(numbered_frame(number, *size), "rgb24").reformat(format=pix_fmt)
    frame.pts, frame.time_base = number, Fraction(1, 25)
    return frame


def number_of(frame: VideoFrame) -> int:
    return read_number(frame.to_ndarray(format="rgb24"))


def grey(value: int, **properties: int) -> VideoFrame:
    frame = VideoFrame.from_ndarray(np.full((96, 64), value, np.uint8), "gray").reformat(format="yuv420p")
    for plane, level in zip(frame.planes, (value, 128, 128), strict=True):
        plane.update(bytes([level]) * plane.buffer_size)
    for name, of in properties.items():
        setattr(frame, name, of)
    frame.time_base = Fraction(1, 25)
    return frame


def luma(frame: VideoFrame) -> int:
    return int(frame.to_ndarray()[0, 0])


def test_a_finished_frame_passes_untouched() -> None:
    pictures = Finisher(Geometry(*SIZE))
    frame = plain(3)
    assert pictures.finish(frame) is frame


def area_means(size: int, to: int) -> np.ndarray:
    """The matrix [to, size] of means over equal parts of a line."""
    edges = np.arange(to + 1) * size / to
    covered = np.minimum(edges[1:, None], np.arange(1, size + 1)) - np.maximum(
        edges[:-1, None], np.arange(size)
    )
    return np.maximum(covered, 0) * to / size


@pytest.mark.parametrize("full_range", [False, True])
def test_colour_of_anamorphic_pictures_is_scaled_once(full_range: bool) -> None:
    y, x = np.mgrid[0:144, 0:180]
    rgb = np.stack([x * 3 % 256, (x + 2 * y) % 256, y * 5 % 256], -1).astype(np.uint8)
    frame = VideoFrame.from_ndarray(rgb, "rgb24").reformat(format="yuv444p")
    frame.time_base, frame.color_range = Fraction(1, 25), 2 if full_range else 1
    shape = geometry(frame, Fraction(64, 45))
    finished = Finisher(shape).finish(frame)
    assert (finished.format.name, finished.width, finished.height) == ("yuv420p", 256, 144)
    for stored, given in zip(frame.to_ndarray()[1:], finished.planes[1:], strict=True):
        colour = (stored - 128.0) * (224 / 255 if full_range else 1.0) + 128
        expected = area_means(144, 72) @ colour @ area_means(180, 128).T
        found = np.frombuffer(memoryview(given), np.uint8).reshape(72, -1)[:, :128]
        assert np.abs(found - expected).max() < 1.5  # two scales: 14 and more


@pytest.mark.parametrize("pix_fmt", ["yuv444p", "yuv422p10le", "rgb24", "yuv420p10le", "nv12"])
def test_other_formats_become_8_bit_420(pix_fmt: str) -> None:
    pictures = Finisher(Geometry(*SIZE))
    for number in range(5):
        finished = pictures.finish(plain(number, pix_fmt))
        assert finished.format.name == "yuv420p"
        assert number_of(finished) == number


@pytest.mark.parametrize(
    ("size", "aspect", "expected"),
    [
        ((720, 576), Fraction(64, 45), (1024, 576)),
        ((161, 129), None, (160, 128)),
        ((160, 128), Fraction(0), (160, 128)),
        ((1, 1), None, (2, 2)),
    ],
)
def test_the_size_of_a_clip_has_square_pixels_and_is_even(
    size: tuple[int, int], aspect: Fraction | None, expected: tuple[int, int]
) -> None:
    assert geometry(VideoFrame(*size, "yuv420p"), aspect) == Geometry(*expected)


def test_a_source_that_changes_its_size_and_format_keeps_the_first_size() -> None:
    pictures = Finisher(Geometry(*SIZE))
    for number, (size, pix_fmt) in enumerate([(SIZE, "yuv420p"), ((320, 256), "yuv444p"), (SIZE, "nv12")]):
        finished = pictures.finish(plain(number, pix_fmt, size))
        assert (finished.width, finished.height) == SIZE
        assert number_of(finished) == number


@pytest.mark.parametrize("bits", [10, 12, 16])
@pytest.mark.parametrize("chroma", ["420", "422", "444"])
def test_deep_samples_are_rounded_to_the_nearest(bits: int, chroma: str) -> None:
    frame = VideoFrame(64, 64, f"yuv{chroma}p{bits}le")
    levels = (np.arange(64) * 877 // 64 + 64) * 2 ** (bits - 10)
    for plane in frame.planes:
        lines = np.frombuffer(plane, "<u2").reshape(plane.height, -1)
        lines[:, : plane.width] = levels[: plane.width] + 2 ** (bits - 9) - 1
    frame.colorspace = frame.color_range = frame.color_trc = frame.color_primaries = 1
    frame.time_base = Fraction(1, 25)
    pictures = Finisher(Geometry(64, 64))
    shown = pictures.finish(frame)
    assert (shown.format.name, shown.colorspace, shown.color_range) == ("yuv420p", 1, 1)
    expected = np.floor((levels + 2 ** (bits - 9) - 1) / 2 ** (bits - 8) + 0.5)
    assert np.array_equal(np.frombuffer(shown.planes[0], np.uint8).reshape(64, -1)[5, :64], expected)


@pytest.mark.parametrize("size", [(854, 480), (40_000, 4), (34, 6)])
def test_every_deep_sample_of_a_picture_of_any_size_is_rounded(size: tuple[int, int]) -> None:
    frame = VideoFrame(*size, "yuv420p10le")
    frame.time_base = Fraction(1, 25)
    rng = np.random.default_rng(0)
    for plane in frame.planes:
        plane.update(rng.integers(0, 1024, plane.buffer_size // 2).astype("<u2").tobytes())
    shown = Finisher(Geometry(*size)).finish(frame)
    for deep, plane in zip(frame.planes, shown.planes, strict=True):
        codes = np.frombuffer(deep, "<u2").reshape(deep.height, -1)[:, : deep.width].astype(int)
        found = np.frombuffer(plane, np.uint8).reshape(plane.height, -1)[:, : plane.width]
        assert np.array_equal(found, np.minimum((codes + 2) >> 2, 255))


def test_full_range_becomes_limited_range_even_in_the_middle_of_a_source() -> None:
    pictures = Finisher(Geometry(64, 96))
    assert luma(pictures.finish(grey(200, color_range=1))) == 200
    assert luma(pictures.finish(grey(255, color_range=2))) == pytest.approx(235, abs=1)
    assert luma(pictures.finish(grey(200, color_range=1))) == 200


def test_hdr_becomes_sdr_and_says_so() -> None:
    pictures = Finisher(Geometry(64, 96))
    shown = [
        pictures.finish(grey(value, color_trc=16, colorspace=9, color_primaries=9, color_range=1))
        for value in (60, 120, 143, 200)
    ]
    assert all(frame.color_trc == 1 for frame in shown)
    values = [luma(frame) for frame in shown]
    assert values == sorted(values)
    assert values[2] > 150  # PQ code 143 of limited range is about 200 nits, SDR's white


def hdr_blocks(wanted: np.ndarray, transfer: int) -> VideoFrame:
    """Colours [rows, columns, 3], BT.2020 R'G'B' as coded, in blocks of 8x8 samples that 4:2:0 holds."""
    to_yuv = np.array([[0.2627, 0.678, 0.0593], [-0.1396, -0.3604, 0.5], [0.5, -0.4598, -0.0402]])
    codes = (
        (wanted @ to_yuv.T * [876, 896, 896] + [64, 512, 512]).round().astype("<u2").repeat(8, 0).repeat(8, 1)
    )
    frame = VideoFrame(codes.shape[1], codes.shape[0], "yuv420p10le")
    for plane, channel, step in zip(frame.planes, range(3), (1, 2, 2), strict=True):
        lines = np.frombuffer(plane, "<u2").reshape(plane.height, -1)
        lines[:, : plane.width] = codes[::step, ::step, channel]
    frame.color_trc, frame.colorspace, frame.color_primaries, frame.color_range = transfer, 9, 9, 1
    frame.time_base = Fraction(1, 25)
    return frame


@pytest.mark.parametrize("transfer", [hdr.PQ, hdr.HLG])
def test_hdr_is_mapped_as_its_formula_says(transfer: int) -> None:
    """Greys, tints and the strongest colours, of which a hundredth may be further off than three levels."""
    levels = np.linspace(0.0, 0.8, 9)
    wanted = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(27, 27, 3)
    shown = Finisher(Geometry(216, 216)).finish(hdr_blocks(wanted, transfer))
    assert (shown.colorspace, shown.color_range, shown.color_trc, shown.color_primaries) == (1, 1, 1, 1)
    # What codes of 10 bits hold of the colours: near 0, rounding them moves a channel by many levels.
    to_yuv = np.array([[0.2627, 0.678, 0.0593], [-0.1396, -0.3604, 0.5], [0.5, -0.4598, -0.0402]])
    scales, offsets = np.array([876, 896, 896]), np.array([64, 512, 512])
    coded = ((wanted @ to_yuv.T * scales + offsets).round() - offsets) / scales @ np.linalg.inv(to_yuv).T
    rgb = hdr.tone_map(coded.clip(0, 1), transfer)
    luma = rgb @ [0.2126, 0.7152, 0.0722]
    blue, red = (rgb[..., 2] - luma) / 1.8556, (rgb[..., 0] - luma) / 1.5748
    for plane, of, middle in zip(
        shown.planes, (219 * luma, 224 * blue, 224 * red), (16, 128, 128), strict=True
    ):
        lines = np.frombuffer(plane, np.uint8).reshape(plane.height, -1)[:, : plane.width]
        step = plane.height // 27
        error = np.abs(lines[step // 2 :: step, step // 2 :: step] - of - middle)
        assert error.mean() < 0.6
        assert np.quantile(error, 0.99) < 3
        assert error.max() < 8


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p10le", "yuv444p12le", "gbrp10le"])
def test_hdr_of_any_format_looks_as_in_420_of_10_bits(pix_fmt: str) -> None:
    tints = np.linspace(0.2, 0.7, 27)[:, None, None] + np.linspace(-0.1, 0.1, 27)[:, None] * [1, 0, -1]
    frame = hdr_blocks(tints, hdr.HLG)
    pictures = Finisher(Geometry(216, 216))
    wanted = pictures.finish(frame).to_ndarray().astype(int)
    other = frame.reformat(format=pix_fmt, src_colorspace="bt2020", dst_colorspace="bt2020")
    other.color_trc, other.colorspace, other.color_primaries, other.color_range = hdr.HLG, 9, 9, 1
    if pix_fmt.startswith("gbr"):
        other.colorspace, other.color_range = 0, 2
    other.time_base = frame.time_base
    error = np.abs(pictures.finish(other).to_ndarray().astype(int) - wanted)
    assert error.mean() < 1


@pytest.mark.parametrize("size", [(1, 1), (65, 33), (64, 31)])
def test_hdr_of_an_odd_size_keeps_its_pictures(size: tuple[int, int]) -> None:
    frame = VideoFrame(*size, "yuv420p10le")
    for plane, level in zip(frame.planes, (500, 512, 512), strict=True):
        np.frombuffer(plane, "<u2")[:] = level
    frame.color_trc, frame.time_base = hdr.PQ, Fraction(1, 25)
    shown = Finisher(geometry(frame, None)).finish(frame)
    assert (shown.width, shown.height) == (max(2, size[0] - size[0] % 2), max(2, size[1] - size[1] % 2))
    luma = np.frombuffer(shown.planes[0], np.uint8).reshape(shown.height, -1)[:, : shown.width]
    assert luma.min() == luma.max() > 100


def test_hdr_of_codes_that_ten_bits_do_not_hold_is_no_crash() -> None:
    frame = VideoFrame(64, 64, "yuv420p10le")
    for number, plane in enumerate(frame.planes):
        codes = np.random.default_rng(number).integers(0, 1 << 16, plane.buffer_size // 2)
        np.frombuffer(plane, "<u2")[:] = codes
    frame.color_trc, frame.time_base = hdr.PQ, Fraction(1, 25)
    assert Finisher(Geometry(64, 64)).finish(frame).format.name == "yuv420p"


def woven(frames: int, size: tuple[int, int] = SIZE) -> Iterator[np.ndarray]:
    """Pictures of two fields: lines 0, 2, .. show number 2k and lines 1, 3, .. show number 2k + 1."""
    for number in range(frames):
        picture = numbered_frame(2 * number, *size)
        picture[1::2] = numbered_frame(2 * number + 1, *size)[1::2]
        yield picture


def interlaced(codec: str, form: str, frames: int = 20, size: tuple[int, int] = SIZE) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.thread_count = 1
        quality = {"crf": "8"} if codec == "libx264" else {"qscale": "2"}
        stream.options = {"flags": "+ildct+ilme", **quality}
        for number, picture in enumerate(woven(frames, size)):
            frame = VideoFrame.from_ndarray(picture, "rgb24").reformat(
                format="yuv420p", interpolation="POINT"
            )
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def decoded(data: bytes, *, deinterlace: bool) -> tuple[list[VideoFrame], bool]:
    with open_video(io.BytesIO(data)) as (container, stream):
        decoder = Decoder(container, stream, deinterlace=deinterlace)
        return list(decoder.frames()), decoder.interlaced


def comb(frame: VideoFrame) -> float:
    """How much more neighbouring lines differ than those two apart, grey levels."""
    picture = frame.to_ndarray(format="gray").astype(float)
    return float(np.abs(picture[1:-1] - picture[2:]).mean() - np.abs(picture[:-2] - picture[2:]).mean())


@pytest.mark.parametrize(("codec", "form"), [("libx264", "mp4"), ("mpeg2video", "mpegts")])
def test_each_interlaced_frame_gives_one_full_picture_with_its_own_time(codec: str, form: str) -> None:
    data = interlaced(codec, form)
    frames, said = decoded(data, deinterlace=False)
    full, _ = decoded(data, deinterlace=True)
    assert said
    assert all(frame.interlaced_frame for frame in frames)
    assert not any(frame.interlaced_frame for frame in full)
    assert [(frame.pts, frame.time_base) for frame in full] == [
        (frame.pts, frame.time_base) for frame in frames
    ]
    numbers = [number_of(frame) for frame in full]
    assert numbers == list(range(numbers[0], numbers[0] + 40, 2))


def test_the_comb_of_moving_fields_is_gone() -> None:
    picture = np.zeros((128, 160, 3), np.uint8) + 60
    frames = []
    for number in range(6):
        woven_picture = picture.copy()
        woven_picture[0::2, 20 + 8 * number : 60 + 8 * number] = 200
        woven_picture[1::2, 24 + 8 * number : 64 + 8 * number] = 200
        frame = VideoFrame.from_ndarray(woven_picture, "rgb24").reformat(format="yuv444p")
        frame.pts, frame.time_base = number, Fraction(1, 25)
        frames.append(frame)
    data = io.BytesIO()
    with av.open(data, "w", format="mpegts") as container:
        stream = container.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 128, "yuv422p"
        stream.options = {"flags": "+ildct+ilme", "qscale": "1"}
        stream.codec_context.thread_count = 1
        for frame in frames:
            container.mux(stream.encode(frame.reformat(format="yuv422p")))
        container.mux(stream.encode(None))
    before, _ = decoded(data.getvalue(), deinterlace=False)
    after, _ = decoded(data.getvalue(), deinterlace=True)
    assert len(after) == len(before) == 6
    assert min(comb(frame) for frame in before) > 3
    assert max(comb(frame) for frame in after[1:-1]) < 0.5


def test_progressive_frames_pass_deinterlacing_untouched() -> None:
    frames = [plain(number) for number in range(5)]
    assert all(out is frame for out, frame in zip(deinterlace(frames), frames, strict=True))


def test_frames_of_changing_kind_keep_their_order_and_number() -> None:
    fields, _ = decoded(interlaced("libx264", "mp4", 6), deinterlace=False)
    large, _ = decoded(interlaced("mpeg2video", "mpegts", 5, (320, 256)), deinterlace=False)
    mixed = [plain(0), *fields, plain(3), plain(4), *large, *fields[:1], plain(7)]
    out = list(deinterlace(mixed))
    assert [(frame.width, frame.pts) for frame in out] == [(frame.width, frame.pts) for frame in mixed]
    assert not any(frame.interlaced_frame for frame in out)
    assert [number_of(out[place]) for place in (0, 7, 8, -1)] == [0, 3, 4, 7]


def test_the_end_of_the_input_costs_no_frame() -> None:
    fields, _ = decoded(interlaced("libx264", "mp4", 3), deinterlace=False)
    for count in (1, 2, 3):
        assert len(list(deinterlace(fields[:count]))) == count


def test_deinterlacing_and_turning_work_together(tmp_path: Path) -> None:
    path = tmp_path / "turned.mp4"
    with av.open(io.BytesIO(interlaced("libx264", "mp4", 4))) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        stream.set_display_rotation(-90)
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    frames, _ = decoded(path.read_bytes(), deinterlace=True)
    assert geometry(frames[0], None) == Geometry(128, 160)
    pictures = Finisher(Geometry(128, 160))
    finished = [pictures.finish(frame) for frame in frames]
    assert {(frame.width, frame.height) for frame in finished} == {(128, 160)}
    upright = [np.rot90(frame.to_ndarray(format="rgb24")) for frame in finished]
    numbers = [read_number(np.ascontiguousarray(picture)) for picture in upright]
    assert numbers == list(range(numbers[0], numbers[0] + 8, 2))
