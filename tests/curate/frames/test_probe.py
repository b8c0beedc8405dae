"""What a source says of itself, and what happens when it lies."""

import io
import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.frames.container.stream_choice import choose_sound
from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.frame_times import timeline
from reelweave.curate.frames.probe import Probe, ProbeConfig, probe
from reelweave.curate.frames.source import SourceError, open_video
from reelweave.curate.source_pass.scan import scan
from reelweave.loader.storage import StorageConfig, WebError, open_object
from tests.httpserver import web_server
from tests.media import CORPUS, NO_CORPUS, numbered_frame, read_number, write_video
from tests.thorough import thorough

CONFIG = ProbeConfig()
HDR = {"x264-params": "colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"}


def probed(data: bytes, config: ProbeConfig = CONFIG) -> Probe:
    with open_video(io.BytesIO(data)) as (container, stream):
        return probe(container, stream, config)


def numbers(data: bytes, config: ProbeConfig = CONFIG) -> list[int]:
    """Of all frames, decoded within limits."""
    with open_video(io.BytesIO(data), max_pixels=config.max_width * config.max_height) as (container, stream):
        frames = Decoder(container, stream, config).frames()
        return [read_number(frame.to_ndarray(format="rgb24")) for frame in frames]


def video(folder: Path, name: str = "a.mp4", **options) -> bytes:
    return write_video(folder / name, **options).read_bytes()


def growing(parts: Iterable[tuple[int, int, int]]) -> bytes:
    """A raw H.264 stream whose pictures change their size; parts are (width, height, frames)."""
    whole = b""
    for width, height, frames in parts:
        part = io.BytesIO()
        with av.open(part, "w", format="h264") as container:
            stream = container.add_stream("libx264", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            stream.codec_context.thread_count = 1
            stream.options = {"preset": "ultrafast"}
            for number in range(frames):
                frame = av.VideoFrame.from_ndarray(np.full((height * 3 // 2, width), 90, np.uint8), "yuv420p")
                frame.pts = number
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        whole += part.getvalue()
    return whole


def test_a_source_describes_itself(tmp_path: Path) -> None:
    found = probed(video(tmp_path, rate=Fraction(30000, 1001), scenes=(30,), audio=True))
    assert (found.codec, found.width, found.height) == ("h264", 160, 128)
    assert found.rate == Fraction(30000, 1001)
    assert found.promised_s == pytest.approx(1.001)
    assert not found.interlaced


def test_a_late_start_is_no_part_of_what_a_header_promises(tmp_path: Path) -> None:
    path = write_video(tmp_path / "late.mkv", (10,), start_s=3)
    assert probed(path.read_bytes()).promised_s == pytest.approx(0.4)


def anamorphic(container_says: Fraction) -> bytes:
    """An MP4 whose H.264 stream says 4:3 and whose container says something else."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 160, 128, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(numbered_frame(0, 160, 128), "rgb24")))
        container.mux(stream.encode(None))
    data = file.getvalue()
    at = data.index(b"pasp") + 4
    return data[:at] + struct.pack(">II", *container_says.as_integer_ratio()) + data[at + 8 :]


def test_the_containers_pixel_aspect_goes_before_the_codecs() -> None:
    assert probed(anamorphic(Fraction(2))).pixel_aspect == 2


def test_an_absurd_pixel_aspect_breaks_the_limit() -> None:
    with pytest.raises(SourceError, match=r"is \d+x128.*max_width"):
        probed(anamorphic(Fraction(60000)))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_width": 159}, "is 160x128"),
        ({"max_height": 100}, "is 160x128"),
        ({"max_duration_s": 1.0}, "lasts 2 s"),
        ({"max_bytes": 100}, "bytes; probe.max_bytes allows 100"),
    ],
)
def test_a_header_beyond_a_limit_fails(tmp_path: Path, limit: dict[str, float], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        probed(video(tmp_path, scenes=(60,)), ProbeConfig(**limit))


def test_pictures_that_grow_beyond_the_limit_fail_before_they_are_decoded() -> None:
    # Long enough that opening the stream does not see the second part.
    data, config = (
        growing([(160, 128, 300), (1280, 960, 3)]),
        ProbeConfig(max_width=640, max_height=480),
    )
    with open_video(io.BytesIO(data), max_pixels=640 * 480) as (container, stream):
        assert probe(container, stream, config).width == 160
        sizes = {(frame.width, frame.height) for frame in Decoder(container, stream).frames()}
    assert sizes == {(160, 128)}
    with pytest.raises(SourceError, match="is 1280x960"):
        numbers(data, config)


def test_pictures_that_grow_to_one_side_fail_too() -> None:
    with pytest.raises(SourceError, match="is 2048x64"):
        numbers(growing([(160, 128, 3), (2048, 64, 3)]), ProbeConfig(max_width=1024, max_height=1024))


def test_pictures_that_change_their_size_within_the_limit_are_fine() -> None:
    with open_video(io.BytesIO(growing([(160, 128, 3), (320, 256, 3)]))) as (container, stream):
        frames = Decoder(container, stream, CONFIG).frames()
        assert [frame.width for frame in frames] == [160, 160, 160, 320, 320, 320]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_frames": 9}, "more than probe.max_frames = 9"),
        ({"max_decode_s": 1e-9}, r"max_decode_s = 1e-09 s to decode; \d+ frames"),
    ],
)
def test_decoding_ends_at_a_limit(tmp_path: Path, limit: dict[str, float], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        numbers(video(tmp_path, scenes=(10,)), ProbeConfig(**limit))


def test_exactly_as_many_frames_as_allowed_are_fine(tmp_path: Path) -> None:
    assert len(numbers(video(tmp_path, scenes=(10,)), ProbeConfig(max_frames=10))) == 10


def test_a_time_stamp_days_later_makes_no_clip_of_days(tmp_path: Path) -> None:
    times_s = [*(number / 25 for number in range(20)), 90_000.0]
    data = video(tmp_path, "a.ts", scenes=(21,), times_s=times_s)
    with scan(io.BytesIO(data), SourceStageConfig()) as seen:
        assert seen.timeline.times_s[-1] == pytest.approx(21 / 25)


def test_hdr_is_taken_or_rejected_as_configured(tmp_path: Path) -> None:
    data = video(tmp_path, scenes=(3,), options=HDR)
    assert numbers(data) == [0, 1, 2]
    with pytest.raises(SourceError, match="is HDR"):
        numbers(data, ProbeConfig(hdr="reject"))


def test_sdr_passes_where_hdr_is_rejected(tmp_path: Path) -> None:
    assert numbers(video(tmp_path, scenes=(3,)), ProbeConfig(hdr="reject", interlaced="reject")) == [0, 1, 2]


def edited(data: bytes, skip: int, shown: int, rate: int = 25) -> bytes:
    """An MP4 whose edit list shows ``shown`` frames after ``skip`` ones that stay in the file."""
    at = data.index(b"elst") + 4
    _, _, _, media_time, speed = struct.unpack(">IIIiI", data[at : at + 20])
    with av.open(io.BytesIO(data)) as container:
        ticks = int(1 / container.streams.video[0].time_base) // rate
    entry = struct.pack(">IIIiI", 0, 1, 1000 * shown // rate, media_time + skip * ticks, speed)
    return data[:at] + entry + data[at + 20 :]


def test_frames_outside_the_edit_list_are_not_shown(tmp_path: Path) -> None:
    data = edited(video(tmp_path, scenes=(30,)), skip=7, shown=13)
    assert numbers(data) == list(range(7, 20))
    assert probed(data).promised_s == pytest.approx(13 / 25)


def test_the_first_frame_shown_is_at_zero_whatever_its_time_stamp(tmp_path: Path) -> None:
    for data in (
        edited(video(tmp_path, scenes=(30,)), skip=7, shown=13),
        video(tmp_path, "late.mp4", scenes=(13,), start_s=7.5),
        video(tmp_path, "late.ts", scenes=(13,), start_s=1000.0),
    ):
        with open_video(io.BytesIO(data)) as (container, stream):
            frames = list(Decoder(container, stream, CONFIG).frames())
            assert stream.time_base is not None
            made = timeline([frame.pts for frame in frames], stream.time_base, None, Fraction(25), (), 60.0)
        assert made.times_s == pytest.approx(np.arange(14) / 25)
        assert made.constant


def test_rotation_and_interlace_are_no_reason_to_fail(tmp_path: Path) -> None:
    assert len(numbers(video(tmp_path, scenes=(6,), options={"flags": "+ildct+ilme"}))) == 6
    with pytest.raises(SourceError, match="is interlaced"):
        numbers(
            video(tmp_path, scenes=(6,), options={"flags": "+ildct+ilme"}), ProbeConfig(interlaced="reject")
        )


def test_a_sound_codec_nobody_knows_is_no_reason_to_fail(tmp_path: Path) -> None:
    data = video(tmp_path, "a.mkv", scenes=(5,), audio=True).replace(b"A_AAC", b"A_XYZ")
    with io.BytesIO(data) as file, open_video(file) as (container, stream):
        assert choose_sound(container, stream, file).fault == "its sound has a codec that is not known here"
    assert numbers(data) == list(range(5))


def raw_stream(codec: str, rate: Fraction, options: dict[str, str] | None = None) -> bytes:
    """Twelve frames in an elementary stream, which holds no times."""
    stream_bytes = io.BytesIO()
    with av.open(stream_bytes, "w", format="hevc" if codec == "libx265" else "h264") as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        for number in range(12):
            frame = av.VideoFrame.from_ndarray(np.full((144, 160), 16 + 16 * number, np.uint8), "yuv420p")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return stream_bytes.getvalue()


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize("rate", [Fraction(24000, 1001), Fraction(30), Fraction(50), Fraction(60000, 1001)])
def test_a_raw_stream_has_the_rate_that_its_codec_states(codec: str, rate: Fraction) -> None:
    """FFmpeg's reader of raw streams says 25 whatever they state, while its program goes by the codec."""
    assert probed(raw_stream(codec, rate)).rate == rate


def test_a_raw_stream_that_states_no_rate_is_refused() -> None:
    data = raw_stream("libx265", Fraction(50), {"x265-params": "log-level=0:vui-timing-info=0"})
    with pytest.raises(SourceError, match="without times or a frame rate; give it a container"):
        probed(data)


def test_a_picture_codec_nobody_knows_is_told(tmp_path: Path) -> None:
    data = video(tmp_path, scenes=(5,)).replace(b"avc1", b"zzzz")
    with pytest.raises(SourceError, match="codec"):
        probed(data)


def test_motion_vectors_come_when_they_are_asked_for(tmp_path: Path) -> None:
    data = video(tmp_path, scenes=(10,))
    for wanted in (True, False):
        with open_video(io.BytesIO(data), motion_vectors=wanted) as (container, stream):
            kinds = [
                str(side.type) for frame in Decoder(container, stream).frames() for side in frame.side_data
            ]
        assert ("Type.MOTION_VECTORS" in kinds) == wanted


@pytest.mark.skipif(not CORPUS.exists(), reason=NO_CORPUS)
def test_every_film_of_the_corpus_keeps_the_default_limits() -> None:
    films = [
        path for path in sorted((CORPUS / "originals").iterdir()) if path.suffix not in (".json", ".txt")
    ]
    assert len(films) > 10
    for path in films:
        with path.open("rb") as file, open_video(file) as (container, stream):
            probe(container, stream, CONFIG)
            assert next(Decoder(container, stream, CONFIG).frames()).width > 0


def test_the_numbers_of_a_test_video_can_be_read_back() -> None:
    assert read_number(numbered_frame(599, 160, 128)) == 599


@thorough
def test_a_film_of_the_web_decodes_like_a_file_and_is_fetched_once(tmp_path: Path) -> None:
    data = video(tmp_path, "a.mkv", scenes=(900,), codec="ffv1")
    config = StorageConfig(block_mib=1)
    with web_server() as web:
        web.files["/a.mkv"] = data
        storage, name = open_object(f"{web.url}/a.mkv", config)
        with storage.open(name) as file:
            for _ in range(2):
                file.seek(0)
                with open_video(file) as (container, stream):
                    assert sum(1 for _ in Decoder(container, stream, CONFIG).frames()) == 900
        assert len(data) > 2 * 2**20
        assert web.bytes_sent() == len(data) + 1


def test_a_server_that_fails_in_the_middle_is_no_damage_of_the_film(tmp_path: Path) -> None:
    data = video(tmp_path, "a.mkv", scenes=(900,), codec="ffv1")
    config = StorageConfig(block_mib=1, max_attempts=1)
    with web_server() as web:
        web.files["/a.mkv"] = data
        storage, name = open_object(f"{web.url}/a.mkv", config)
        with storage.open(name) as file, open_video(file) as (container, stream):
            frames = Decoder(container, stream, CONFIG).frames()
            next(frames)
            web.files.clear()
            with pytest.raises(WebError, match="disappeared"):
                list(frames)
