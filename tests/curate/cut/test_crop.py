"""Bars are cropped from clips, to the seam, and nothing else is."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reelweave.curate.config import CurateConfig
from reelweave.curate.cut.crop import Crop
from reelweave.curate.ledger.records import Record
from tests import filter_footage
from tests.cutting import curated, pictures
from tests.filter_footage import Picture, encode, texture
from tests.media import with_display_matrix
from tests.player import ffmpeg
from tests.thorough import beyond

WIDTH, HEIGHT = filter_footage.WIDTH // 2, filter_footage.HEIGHT // 2
SHORT = {"min_clip_s": 0.5}
RED = np.array([160, 20, 20])


def pan(frames: int, seed: int = 0) -> Iterator[Picture]:
    return (picture[::2, ::2] for picture in filter_footage.pan(frames, seed=seed))


def barred(frames: Iterable[Picture], crop: Crop, colour: Any = 0) -> Iterator[Picture]:
    """The frames with some of their lines painted over."""
    rows, columns = slice(crop.top, HEIGHT - crop.bottom), slice(crop.left, WIDTH - crop.right)
    for picture in frames:
        framed = np.empty_like(picture)
        framed[:] = colour
        framed[rows, columns] = picture[rows, columns]
        yield framed


def cropped(path: Path, out: Path, **cut_values: Any) -> list[tuple[Record, bytes]]:
    values = {"crop_bars": True, **cut_values}
    return curated(path, out, spans=SHORT, cut=values)


def crop_of(record: Record) -> Crop:
    values = {
        name: int((record.scores or {}).get(f"crop_{name}_px", 0))
        for name in ("top", "bottom", "left", "right")
    }
    return Crop(**values)


def near(found: Crop, true: Crop, most: int = 4) -> bool:
    """Whether no line of the bars is left, and at most a few of the picture are lost."""
    pairs = zip(vars(found).values(), vars(true).values(), strict=True)
    return all(0 <= lost - bar <= (most if bar else 0) for lost, bar in pairs)


LETTERBOX, PILLARS, WINDOW = Crop(18, 18), Crop(0, 0, 32, 32), Crop(12, 16, 24, 30)


@pytest.mark.parametrize(
    ("crop", "colour"),
    beyond(
        3,
        [
            (LETTERBOX, 0),
            (PILLARS, RED),
            (WINDOW, 255),
            (PILLARS, 16),
            (WINDOW, 0),
            (Crop(4, 4), 0),
            (Crop(0, 0, 76, 76), 20),
        ],
    ),
)
def test_clips_are_the_picture_inside_the_bars(crop: Crop, colour: Any, tmp_path: Path) -> None:
    film = encode(tmp_path / "film.mp4", barred(pan(30), crop, colour))
    ((record, clip),) = cropped(film, tmp_path / "out")
    found = crop_of(record)
    assert near(found, crop), found
    assert (record.width, record.height) == (
        WIDTH - found.left - found.right,
        HEIGHT - found.top - found.bottom,
    )
    assert "bars cropped" in record.reason
    assert record.scores["bars_share"] == 0
    assert record.scores["short_side_px"] == min(record.width, record.height)
    # The samples are those of the source, less what the encoder loses.
    rows, columns = slice(found.top, HEIGHT - found.bottom), slice(found.left, WIDTH - found.right)
    for shown, whole in zip(pictures(clip), pictures(film), strict=True):
        inside = whole[:HEIGHT][rows, columns].astype(int)
        assert np.abs(shown[: record.height] - inside).mean() < 3


def night(frames: int) -> Iterator[Picture]:
    """Dark above, as a sky is."""
    ramp = np.clip(np.linspace(-0.6, 1.2, HEIGHT), 0, 1)[:, None, None]
    return ((picture * ramp).astype(np.uint8) for picture in pan(frames))


def walled(frames: int) -> Iterator[Picture]:
    """A dark wall at one side."""
    return barred(pan(frames), Crop(left=66))


def spotted(frames: int) -> Iterator[Picture]:
    return barred(pan(frames), Crop(60, 60, 110, 110))


def titled(frames: int) -> Iterator[Picture]:
    black = np.zeros((2 * HEIGHT, 2 * WIDTH, 3), np.uint8)
    titles = filter_footage.over(itertools.repeat(black, frames), "A long title of a film", (0.5, 0.5))
    return (picture[::2, ::2] for picture in titles)


def walked(frames: int, level: int = 45) -> Iterator[Picture]:
    """Two dark walls beside a door, before one of which somebody walks."""
    for number, picture in enumerate(barred(pan(frames), PILLARS, 12)):
        shown = picture.copy()
        shown[60:110, number % 20 : number % 20 + 8] = level
        yield shown


def walked_in_light(frames: int) -> Iterator[Picture]:
    return walked(frames, 180)


def uneven(frames: int) -> Iterator[Picture]:
    """A narrow bar beside a wide one, which may be a dark floor: none goes."""
    return barred(pan(frames), Crop(2, 30))


def moonlit(frames: int) -> Iterator[Picture]:
    """The moon in a black sky, which ends in a straight horizon, above a bar."""
    for picture in barred(pan(frames), Crop(60, 20)):
        shown = picture.copy()
        shown[20:32, 40:52] = 220
        yield shown


def seldom(frames: int) -> Iterator[Picture]:
    """Bars, but for one moment in which the picture fills the screen."""
    whole, framed = pan(frames), barred(pan(frames), LETTERBOX)
    for number, (outside, inside) in enumerate(zip(whole, framed, strict=True)):
        yield outside if frames // 2 <= number < frames // 2 + 8 else inside


@pytest.mark.parametrize(
    "scene",
    beyond(4, [pan, walked, walked_in_light, uneven, night, seldom, walled, moonlit, spotted, titled]),
)
def test_what_is_no_bar_stays(scene: Any, tmp_path: Path) -> None:
    film = encode(tmp_path / "film.mp4", scene(40))
    records = [record for record, _ in cropped(film, tmp_path / "out") if record.state == "kept"]
    assert records
    assert all((record.width, record.height) == (WIDTH, HEIGHT) for record in records)
    assert all("cropped" not in record.reason for record in records)
    assert not any("crop_top_px" in record.scores for record in records)


def test_letters_in_a_bar_do_not_end_it(tmp_path: Path) -> None:
    letters = np.zeros((HEIGHT, WIDTH), bool)
    letters[-14:-6, 80:176:4] = True
    subtitled = (
        np.where(letters[..., None], np.uint8(240), picture) for picture in barred(pan(40), LETTERBOX)
    )
    ((record, _),) = cropped(encode(tmp_path / "film.mp4", subtitled), tmp_path / "out")
    assert near(crop_of(record), LETTERBOX)


def two_shots() -> Iterator[Picture]:
    yield from barred(pan(50), LETTERBOX)
    yield from barred(pan(50, seed=5), PILLARS)
    yield from pan(40, seed=9)


def widening() -> Iterator[Picture]:
    """One shot, whose first frames promise wider bars than it has: a guess from them is wrong."""
    narrow, wide = barred(pan(120), Crop(24, 24)), barred(pan(120), LETTERBOX)
    for number, pair in enumerate(zip(narrow, wide, strict=True)):
        yield pair[number >= 90]


@pytest.mark.parametrize("film", [two_shots, widening])
def test_a_clip_is_cropped_alike_in_one_pass_and_in_two(film: Any, tmp_path: Path) -> None:
    path = encode(tmp_path / "film.mp4", film())
    once = cropped(path, tmp_path / "once")
    twice = cropped(path, tmp_path / "twice", ahead_mb=0)
    assert [(record.reason, clip) for record, clip in once] == [
        (record.reason, clip) for record, clip in twice
    ]
    crops = [crop_of(record) for record, _ in once if record.state == "kept"]
    if film is widening:
        assert len(crops) == 1
        assert near(crops[0], LETTERBOX)
    else:
        assert len(crops) == 3
        assert all(near(*pair) for pair in zip(crops, (LETTERBOX, PILLARS, Crop()), strict=True))


def turned(path: Path) -> Path:
    path.write_bytes(with_display_matrix(path.read_bytes(), 0, 1, -1, 0))
    return path


@pytest.mark.parametrize("kind", beyond(1, ["turned", "anamorphic", "10 bits", "rgb", "avi"]))
def test_bars_lie_where_players_show_them(kind: str, tmp_path: Path) -> None:
    film = encode(tmp_path / "film.mp4", barred(pan(30), LETTERBOX))
    other, true = tmp_path / "other.mp4", LETTERBOX
    if kind == "turned":
        film, true = turned(film), Crop(0, 0, 18, 18)
    elif kind == "anamorphic":
        ffmpeg([*f"-i {film} -vf scale=192:144,setsar=4/3".split(), str(other)])
        film = other
    elif kind == "10 bits":
        ffmpeg([*f"-i {film} -pix_fmt yuv420p10le".split(), str(other)])
        film = other
    elif kind == "rgb":
        film, source = tmp_path / "film.mkv", film
        ffmpeg([*f"-i {source} -pix_fmt gbrp -c:v ffv1".split(), str(film)])
    else:
        film, source = tmp_path / "film.avi", film
        ffmpeg([*f"-i {source} -c:v mpeg4 -q:v 3".split(), str(film)])
    values = {"max_bits": 10} if kind == "10 bits" else {}
    ((record, _),) = cropped(film, tmp_path / "out", **values)
    assert near(crop_of(record), true, most=6), crop_of(record)


@pytest.mark.parametrize("mode", beyond(1, ["smart", "auto"]))
def test_cropped_clips_are_encoded_and_others_copied(mode: str, tmp_path: Path) -> None:
    options = {"crf": "20", "preset": "veryfast", "g": "10", "bf": "0"}
    film = encode(tmp_path / "film.mp4", two_shots(), options=options)
    records = [record for record, _ in cropped(film, tmp_path / "out", mode=mode) if record.state == "kept"]
    assert [record.scores["copied_frames"] > 0 for record in records] == [False, False, True]
    assert all("cropped" in record.reason for record in records[:2])
    assert ("encoded: its bars are cropped" in records[0].reason) == (mode == "smart")


def test_a_copy_cannot_be_cropped() -> None:
    with pytest.raises(ValueError, match="crop_bars"):
        CurateConfig.model_validate({"cut": {"mode": "copy", "crop_bars": True}})


@pytest.mark.parametrize("codec", beyond(1, ["libx264", "mpeg2video", "libvpx"]))
def test_coarse_coding_hides_no_bar(codec: str, tmp_path: Path) -> None:
    """Blocks ring beside the seam, and move it from frame to frame."""
    options = {"libx264": {"crf": "38", "preset": "veryfast"}, "libvpx": {"b": "80k", "deadline": "realtime"}}
    film = encode(
        tmp_path / "film.mkv",
        barred(pan(40), WINDOW),
        codec=codec,
        options=options.get(codec, {"qscale": "12"}),
    )
    ((record, _),) = cropped(film, tmp_path / "out")
    assert near(crop_of(record), WINDOW, most=6), crop_of(record)


def test_a_still_picture_on_a_page_keeps_its_page(tmp_path: Path) -> None:
    """White margins of a page with text are no bars: no line behind them is all picture."""
    page = np.full((HEIGHT, WIDTH, 3), 250, np.uint8)
    picture = np.asarray(Image.fromarray(texture()).resize((80, 45)))
    page[30:75, 20:100] = picture
    film = encode(tmp_path / "film.mp4", itertools.repeat(page, 30))
    records = [record for record, _ in cropped(film, tmp_path / "out")]
    assert not any("cropped" in record.reason for record in records)
