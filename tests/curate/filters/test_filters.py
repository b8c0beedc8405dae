"""Scores tell defects from good footage by a margin, on rendered films that went through a real codec."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from av.audio.resampler import AudioResampler
from PIL import Image, ImageDraw

from reelweave.curate.filters import (
    FilterConfig,
    ScoreConfig,
    decide,
    loudness_dbfs,
    ocr_scores,
    scores,
    sound_scores,
)
from reelweave.curate.filters.decision import by_stage, first_rejection
from reelweave.curate.filters.ocr import TextMeter, check_ocr, text_reader
from reelweave.loader.errors import UsageError
from tests.cutting import curated
from tests.filter_footage import HEIGHT, RATE, WIDTH, Picture, encode, over, pan, sample_of, still, texture
from tests.media import CORPUS, NO_CORPUS, write_video
from tests.player import ffmpeg
from tests.thorough import beyond

CONFIG = ScoreConfig()


def scored(path: Path, pictures: Iterable[Picture], **options: str) -> dict[str, float]:
    name = path / "film.mp4"
    encode(name, pictures, options={"crf": "23", "preset": "veryfast", **options})
    return scores(sample_of(name))


def barred(
    pictures: Iterable[Picture], rows: int = 0, columns: int = 0, level: int = 16
) -> Iterator[Picture]:
    for picture in pictures:
        framed = np.full_like(picture, level)
        inside = picture[rows : HEIGHT - rows, columns : WIDTH - columns]
        framed[rows : HEIGHT - rows, columns : WIDTH - columns] = inside
        yield framed


def lit(pictures: Iterable[Picture], gains: Iterable[float]) -> Iterator[Picture]:
    for picture, gain in zip(pictures, gains, strict=False):
        yield np.clip(picture * gain, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return scored(tmp_path_factory.mktemp("good"), pan(50))


def test_good_footage_passes_all_defaults(good: dict[str, float]) -> None:
    assert decide(good, FilterConfig()) is None
    assert good["duration_s"] == 2
    assert (good["short_side_px"], good["fps"]) == (HEIGHT, RATE)
    assert good["aspect"] == pytest.approx(WIDTH / HEIGHT, abs=1e-5)


@pytest.mark.parametrize(
    ("level", "name"), [(0, "black_share"), (16, "black_share"), (255, "white_share"), (245, "white_share")]
)
def test_black_and_white_pictures(tmp_path: Path, level: int, name: str, good: dict[str, float]) -> None:
    found = scored(tmp_path, itertools.repeat(np.full((HEIGHT, WIDTH, 3), level, np.uint8), 50))
    assert found[name] == 1
    assert good[name] == 0
    rejection = decide(found, FilterConfig())
    assert rejection is not None
    assert rejection.stage == f"filter.{name}"


def on_ground(level: int, draw: Callable[[ImageDraw.ImageDraw, int], None]) -> Iterator[Picture]:
    """Something drawn on an even noisy ground, for each of 40 frames."""
    rng = np.random.default_rng(0)
    for number in range(40):
        image = Image.new("RGB", (WIDTH, HEIGHT), (level, level, level))
        draw(ImageDraw.Draw(image), number)
        yield np.clip(np.asarray(image) + rng.normal(0, 2, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8)


STARS = np.random.default_rng(1).uniform(0, 1, (120, 2)) * [WIDTH, HEIGHT]


def stars(draw: ImageDraw.ImageDraw, number: int) -> None:
    for x, y in STARS:
        draw.point([(x + 0.3 * number, y), (x + 0.3 * number, y + 1)], (220, 220, 255))


def moon(draw: ImageDraw.ImageDraw, number: int) -> None:
    draw.circle((100 + 2 * number, 120), 20, (190, 190, 170))


def dancer(draw: ImageDraw.ImageDraw, number: int) -> None:
    draw.rectangle([(200 + number, 150), (216 + number, 220)], (200, 120, 90))


def pen(draw: ImageDraw.ImageDraw, number: int) -> None:
    draw.line([(40, 140), (60 + 5 * number, 150)], (20, 20, 20), 3)


def dust(draw: ImageDraw.ImageDraw, number: int) -> None:
    x, y = np.random.default_rng(number).integers(0, 250, 2)
    draw.point([(x, y), (x, y + 1)], (220, 220, 220))


@pytest.mark.parametrize(
    ("draw", "level", "nothing"),
    beyond(3, [(stars, 4, False), (pen, 250, False), (dust, 10, True), (moon, 6, False), (dancer, 3, False)]),
)
def test_a_small_subject_on_an_even_ground_is_neither_black_nor_white_nor_frozen(
    tmp_path: Path, draw: Callable[[ImageDraw.ImageDraw, int], None], level: int, nothing: bool
) -> None:
    found = scored(tmp_path, on_ground(level, draw), crf="26")
    assert found["black_share" if level < 128 else "white_share"] == float(nothing)
    assert (found["frozen_share"] > 0.95) == nothing


def test_half_a_black_clip_is_half_black(tmp_path: Path) -> None:
    found = scored(tmp_path, lit(pan(50), [0.0] * 25 + [1.0] * 25))
    assert found["black_share"] == pytest.approx(0.5, abs=0.13)


def test_exposure(tmp_path: Path, good: dict[str, float]) -> None:
    dark = scored(tmp_path, lit(pan(50), itertools.repeat(0.15)))
    bright = scored(tmp_path, lit(pan(50), itertools.repeat(4.0)))
    assert dark["luminance"] < 0.3 * good["luminance"]
    assert dark["contrast"] < 0.4 * good["contrast"]
    assert bright["clipped_share"] > 0.5 > 0.01 > good["clipped_share"]


def test_black_and_white_film_has_no_colour(tmp_path: Path, good: dict[str, float]) -> None:
    grey = (np.repeat(picture.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8) for picture in pan(50))
    assert scored(tmp_path, grey)["colourfulness"] < 2 < 15 < good["colourfulness"]


def test_a_frozen_clip_is_frozen_and_no_slideshow(tmp_path: Path, good: dict[str, float]) -> None:
    found = scored(tmp_path, still(60))
    assert found["frozen_share"] == 1
    assert found["slideshow"] == 0
    assert found["duplicate_share"] > 0.9
    assert (good["frozen_share"], good["duplicate_share"]) == (0, 0)


def test_one_small_thing_that_moves_is_no_frozen_clip(tmp_path: Path) -> None:
    def mouse() -> Iterator[Picture]:
        for number, picture in enumerate(still(60)):
            shown = picture.copy()
            shown[200:224, 40 + 3 * number : 64 + 3 * number] = 10
            yield shown

    assert scored(tmp_path, mouse())["frozen_share"] < 0.2


def test_stills_one_after_the_other_are_a_slideshow(tmp_path: Path, good: dict[str, float]) -> None:
    slides = itertools.chain.from_iterable(still(30, seed) for seed in range(3))
    assert scored(tmp_path, slides)["slideshow"] > 0.7
    assert good["slideshow"] == 0


def test_frames_shown_twice_are_counted(tmp_path: Path) -> None:
    twice = itertools.chain.from_iterable((picture, picture) for picture in pan(30, 6))
    assert scored(tmp_path, twice, crf="18")["duplicate_share"] == pytest.approx(0.5, abs=0.1)


def test_flicker_is_light_that_alternates_and_not_a_fade(tmp_path: Path, good: dict[str, float]) -> None:
    flickering = scored(tmp_path, lit(pan(50), itertools.cycle((0.9, 1.1))))
    fading = scored(tmp_path, lit(pan(50), np.linspace(1.2, 0.4, 50)))
    assert flickering["flicker"] > 5
    assert fading["flicker"] < 1
    assert good["flicker"] < 1


@pytest.mark.parametrize("sigma", beyond(1, [4, 8, 16]))
def test_blur_lowers_sharpness(tmp_path: Path, sigma: int, good: dict[str, float]) -> None:
    from PIL import Image, ImageFilter

    blurred = (
        np.asarray(Image.fromarray(np.ascontiguousarray(picture)).filter(ImageFilter.GaussianBlur(sigma)))
        for picture in pan(50)
    )
    assert scored(tmp_path, blurred)["sharpness"] < good["sharpness"] - 0.1


@pytest.mark.parametrize(("rows", "columns"), [(36, 0), (0, 64), (24, 48)])
@pytest.mark.parametrize("level", [0, 16, 255])
def test_bars_are_found(tmp_path: Path, rows: int, columns: int, level: int, good: dict[str, float]) -> None:
    found = scored(tmp_path, barred(pan(40), rows, columns, level))
    assert abs(found["bar_top_px"] - rows) <= 4
    assert abs(found["bar_left_px"] - columns) <= 4
    share = 1 - (HEIGHT - 2 * rows) * (WIDTH - 2 * columns) / (WIDTH * HEIGHT)
    assert found["bars_share"] == pytest.approx(share, abs=0.03)
    assert good["bars_share"] == 0


def test_bars_do_not_darken_the_picture_inside(tmp_path: Path, good: dict[str, float]) -> None:
    found = scored(tmp_path, barred(pan(50), 60))
    assert found["luminance"] == pytest.approx(good["luminance"], rel=0.1)
    assert found["black_share"] == 0


def test_a_night_sky_is_no_bar(tmp_path: Path) -> None:
    ramp = np.clip(np.linspace(-0.6, 1.2, HEIGHT), 0, 1)[:, None, None]
    found = scored(tmp_path, ((picture * ramp).astype(np.uint8) for picture in pan(50)))
    assert found["bars_share"] == 0


def test_subtitles_look_like_text_and_leaves_do_not(tmp_path: Path, good: dict[str, float]) -> None:
    found = scored(tmp_path, over(pan(50), "and then they went home again", (0.5, 0.88)))
    assert found["text_peak"] > 1.5 * max(0.1, good["text_peak"])
    assert found["text_share"] > 0.01
    assert good["text_share"] < 0.005


def test_a_logo_stays_while_the_camera_moves(tmp_path: Path, good: dict[str, float]) -> None:
    found = scored(tmp_path, over(pan(50, softness=0.2), "TV1", (0.9, 0.1), size=0.12))
    assert found["overlay_share"] > 0.003
    assert good["overlay_share"] == 0
    assert scored(tmp_path, still(50))["overlay_share"] == 0


def test_sound_and_silence(tmp_path: Path, good: dict[str, float]) -> None:
    loud = scores(sample_of(write_video(tmp_path / "a.mp4", (50,), audio=True)))
    assert (loud["has_audio"], loud["silent_share"]) == (1, 0)
    assert loud["loudness_dbfs"] == pytest.approx(-6, abs=0.5)  # a full-scale sine, mono spread over stereo
    assert (good["has_audio"], good["silent_share"]) == (0, 1)
    assert sound_scores(sample_of(write_video(tmp_path / "b.mp4", (20,))))["loudness_dbfs"] == -120


@pytest.mark.parametrize("channels", [6, 8])
def test_sound_of_many_channels_in_planes_is_measured(tmp_path: Path, channels: int) -> None:
    """PyAV counts nine planes of eight channels, which ended the process and failed the film."""
    path = tmp_path / "a.mp4"
    tone = ["-f", "lavfi", "-i", "sine=440:duration=1:sample_rate=48000"]
    ffmpeg([*tone, "-ac", str(channels), "-c:a", "aac", "-y", str(path)])
    samples = [np.zeros((channels, 0), np.float32)]
    with av.open(str(path)) as container:
        for frame in container.decode(container.streams.audio[0]):
            [packed] = AudioResampler("flt", frame.layout.name, frame.sample_rate).resample(frame)
            samples.append(packed.to_ndarray().reshape(-1, channels).T)
    power = np.concatenate(samples, axis=1)[:, :48000].astype(np.float64).reshape(channels, 10, 4800) ** 2
    assert loudness_dbfs(path.read_bytes())[:10] == pytest.approx(10 * np.log10(power.mean((0, 2))), abs=1e-3)


@pytest.mark.parametrize(("begins_s", "share"), [(None, 0.75), (3.0, 0.75), (0.0, 0.0)])
def test_time_that_sound_does_not_fill_is_silent(
    begins_s: float | None, share: float, tmp_path: Path
) -> None:
    """A film of 4 s whose sound ends after a second, begins in the last one, or lasts."""
    pictures, sound, path = (
        write_video(tmp_path / "a.mp4", (100,), audio=True),
        tmp_path / "s.m4a",
        tmp_path / "b.mp4",
    )
    lasts = [] if begins_s == 0 else ["-t", "1"]
    ffmpeg(["-i", str(pictures), "-vn", *lasts, "-c:a", "aac", "-y", str(sound)])
    delayed = ["-itsoffset", str(begins_s or 0), "-i", str(sound)]
    ffmpeg(["-i", str(pictures), *delayed, "-map", "0:v", "-map", "1:a", "-c", "copy", "-y", str(path)])
    ((record, _),) = curated(path, tmp_path / "out")
    assert record.state == "kept", record.reason
    assert record.scores["silent_share"] == pytest.approx(share, abs=0.03)


def test_every_threshold_has_a_score(good: dict[str, float]) -> None:
    later = {"aesthetic", "ocr_share", "ocr_chars", "static_graphic", "caption_match"}
    for key in FilterConfig.model_fields:
        assert key.partition("_")[2] in good.keys() | later


def test_decisions_name_the_first_threshold_missed() -> None:
    only = dict.fromkeys(FilterConfig.model_fields)
    config = FilterConfig(**{**only, "min_motion": 0.1, "max_bars_share": 0.2, "min_aesthetic": 5})
    assert decide({"motion": 0.1, "bars_share": 0.2, "aesthetic": 5}, config) is None
    rejection = decide({"motion": 0.05, "bars_share": 0.5, "aesthetic": 5}, config)
    assert rejection is not None
    assert (rejection.stage, rejection.score, rejection.threshold) == ("filter.motion", 0.05, 0.1)
    assert rejection.state == "filtered"
    assert "filters.min_motion" in rejection.reason


@pytest.mark.parametrize("scores", [{"motion": 0.5}, {"motion": 0.5, "aesthetic": float("nan")}])
def test_a_missing_score_is_a_failure_unless_it_is_still_to_come(scores: dict[str, float]) -> None:
    only = dict.fromkeys(FilterConfig.model_fields)
    config = FilterConfig(**{**only, "min_motion": 0.1, "min_aesthetic": 5})
    rejection = decide(scores, config)
    assert rejection is not None
    assert (rejection.state, rejection.stage) == ("failed", "filter.aesthetic")
    at_once, later = by_stage(config, {"embed": ("aesthetic",)})
    assert first_rejection(scores, at_once) is None
    assert first_rejection(scores, later["embed"]) == rejection


def test_ocr_measures_what_it_reads() -> None:
    read: list[tuple[int, ...]] = []

    def reader(picture: Picture) -> list[tuple[np.ndarray, str]]:
        read.append(picture.shape)
        height, width = picture.shape[:2]
        quarter = np.array([[0, 0], [width / 2, 0], [width / 2, height / 2], [0, height / 2]])
        return [(quarter, "four"), (quarter + 1, "and")] if len(read) < 3 else []

    meter = TextMeter(reader)
    for times in (1, 1, 2):
        meter.push(texture(), times)
    assert meter.pictures == 4
    text = meter.take()
    assert ocr_scores(text) == {"ocr_share": pytest.approx(0.25), "ocr_chars": pytest.approx(3.5)}
    # What is cropped is not read.
    assert ocr_scores(text.inside(0.0, 0.6, 1.0, 1.0)) == {"ocr_share": 0, "ocr_chars": 0}
    half = ocr_scores(text.inside(0.0, 0.25, 1.0, 1.0))
    assert half["ocr_share"] == pytest.approx(1 / 6, abs=0.01)
    assert half["ocr_chars"] == pytest.approx(1.75, abs=0.05)
    assert ocr_scores(meter.take()) == {"ocr_share": 0, "ocr_chars": 0}


def test_text_is_read_once_a_second_at_full_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the scored pictures: in 256 pixels no mark can be read."""
    sizes: list[tuple[int, ...]] = []

    def reader(picture: Picture) -> list[tuple[np.ndarray, str]]:
        sizes.append(picture.shape)
        return [(np.array([[0, 0], [9, 0], [9, 9], [0, 9]]), "mark")]

    monkeypatch.setattr("reelweave.curate.source_pass.sampling.text_reader", lambda name: reader)
    film = encode(tmp_path / "film.mp4", pan(60))
    ((record, _),) = curated(film, tmp_path / "out", scores={"ocr": "easyocr"})
    assert sizes == [(HEIGHT, WIDTH, 3)] * 3
    assert record.scores["ocr_chars"] == 4
    ((record, _),) = curated(film, tmp_path / "without")
    assert "ocr_chars" not in record.scores


def test_rapidocr_reads_a_subtitle_and_no_leaves() -> None:
    meter = TextMeter(text_reader("rapidocr"))
    meter.push(next(over(pan(1), "and then they went home again", (0.5, 0.88))))
    assert ocr_scores(meter.take())["ocr_chars"] > 15
    meter.push(texture())
    assert ocr_scores(meter.take())["ocr_chars"] == 0


def test_a_missing_ocr_package_is_asked_for_in_words() -> None:
    with pytest.raises(UsageError, match=r"scores\.ocr = easyocr needs the package easyocr"):
        check_ocr(ScoreConfig(ocr="easyocr"))
    check_ocr(ScoreConfig())


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
def test_real_footage_passes_all_defaults() -> None:
    for name in ("parking_lane_cars.mp4", "mouse_arena.mp4", "bbb_opening.mp4", "chaplin_policeman.mp4"):
        found = scores(sample_of(CORPUS / "originals" / name, last=120))
        assert decide(found, FilterConfig()) is None, name
        assert all(np.isfinite(value) for value in found.values()), name


def test_the_texture_is_not_what_makes_the_difference() -> None:
    assert texture(seed=1).std() == pytest.approx(texture(seed=2).std(), rel=0.3)
