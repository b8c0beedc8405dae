"""Static graphics: edges that stay while the scene moves, on drawn and on filmed scenes."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageDraw

from reelweave.curate.filters.still_edges import LOOK_LONG_SIDE_PX, EdgeMeter, StillEdges, graphic_scores
from tests.cutting import curated
from tests.filter_footage import HEIGHT, RATE, WIDTH, Picture, encode, over, pan, texture
from tests.media import CORPUS, NO_CORPUS

CORNER = (0.8, 0.75)


def walk(frames: int = 75) -> Iterator[Picture]:
    """The camera moves over a scene with sharp edges."""
    return pan(frames, softness=0.1)


def starred(
    pictures: Iterable[Picture], opacity: float = 0.5, place: tuple[float, float] = CORNER
) -> Iterator[Picture]:
    """The pictures under a white star with four points, as generators leave one in a corner."""
    for picture in pictures:
        height, width = picture.shape[:2]
        middle, size = (place[0] * width, place[1] * height), 0.06 * max(height, width)
        points = [
            (middle[0] + reach * size * np.cos(turn), middle[1] + reach * size * np.sin(turn))
            for turn, reach in zip(np.arange(8) * np.pi / 4, (1.0, 0.25) * 4, strict=True)
        ]
        layer = Image.new("L", (width, height), 0)
        ImageDraw.Draw(layer).polygon(points, fill=round(255 * opacity))
        image = Image.fromarray(picture)
        image.paste((255, 255, 255), (0, 0), layer)
        yield np.asarray(image)


def edges_of(pictures: Iterable[Picture], every: int = RATE // 3) -> StillEdges:
    meter = EdgeMeter()
    for number, picture in enumerate(pictures):
        if number % every == 0:
            meter.push(np.asarray(Image.fromarray(picture).convert("L")))
    return meter.take()


def scores_of(pictures: Iterable[Picture]) -> dict[str, float]:
    return graphic_scores(edges_of(pictures))


def filmed(name: str, seconds: float) -> list[Picture]:
    """Pictures of a real film, three a second."""
    pictures: list[Picture] = []
    with av.open(str(CORPUS / "originals" / name)) as container:
        for frame in container.decode(video=0):
            if frame.time >= seconds:
                break
            if frame.time >= len(pictures) / 3:
                scale = min(1.0, LOOK_LONG_SIDE_PX / max(frame.width, frame.height))
                pictures.append(
                    frame.to_ndarray(
                        format="rgb24", width=int(frame.width * scale), height=int(frame.height * scale)
                    )
                )
    return pictures


@pytest.mark.parametrize("opacity", [0.3, 1.0])
def test_a_star_in_a_corner_of_a_moving_scene_is_a_graphic(opacity: float) -> None:
    found = scores_of(starred(walk(), opacity))
    assert 0.001 < found["static_graphic"] < 0.01
    assert found["static_edges"] < 0.05


def test_a_moving_scene_has_no_graphic() -> None:
    found = scores_of(walk())
    assert found["static_graphic"] == 0
    assert found["static_edges"] < 0.02


def test_a_still_camera_cannot_tell() -> None:
    """Everything stays; the other score says so."""
    found = scores_of(starred([texture(softness=0.1)] * 75))
    assert found["static_graphic"] == 0
    assert found["static_edges"] > 0.9


def test_a_straight_line_is_no_graphic() -> None:
    """The seam of a bar and a horizon have steps in one direction alone."""
    lined = [picture.copy() for picture in walk()]
    for picture in lined:
        picture[200:, :] = 0
    assert scores_of(lined)["static_graphic"] == 0


def test_what_is_shown_for_a_part_of_the_time_is_no_graphic() -> None:
    """A sign that passes, words that change: nothing that stays for the whole clip."""
    pictures = list(walk())
    assert scores_of([*starred(pictures[:30], 1.0), *pictures[30:]])["static_graphic"] == 0


def test_a_picture_counts_as_often_as_it_is_due() -> None:
    pictures = [np.asarray(Image.fromarray(one).convert("L")) for one in starred(walk(60))][::6]
    once, often = EdgeMeter(), EdgeMeter()
    for picture in pictures:
        once.push(picture)
        once.push(picture)
        often.push(picture, 2)
    first, second = once.take(), often.take()
    assert first.pictures == second.pictures == 20
    np.testing.assert_allclose(first.cells, second.cells, rtol=1e-4)
    assert once.take().pictures == 0
    assert graphic_scores(once.take()) == {"static_graphic": 0, "static_edges": 0}


def test_what_is_cropped_is_not_looked_at() -> None:
    edges = edges_of(starred(walk()))
    assert graphic_scores(edges.inside((0, 0.8), (0, 1)))["static_graphic"] == 0
    larger = graphic_scores(edges.inside((0.5, 1), (0, 1)))["static_graphic"]
    assert larger == pytest.approx(2 * graphic_scores(edges)["static_graphic"], rel=0.1)


def test_scores_of_graphics_are_measured_where_they_are_asked_for(tmp_path: Path) -> None:
    film = encode(tmp_path / "film.mp4", starred(walk(60)))
    ((record, _),) = curated(film, tmp_path / "asked", scores={"graphics": True})
    assert record.scores["static_graphic"] > 0.001
    ((record, _),) = curated(film, tmp_path / "out")
    assert not {"static_graphic", "static_edges"} & record.scores.keys()


def test_a_mark_in_a_bar_goes_with_it(tmp_path: Path) -> None:
    barred = []
    for picture in walk(60):
        one = picture.copy()
        one[:48], one[-48:] = 0, 0
        barred.append(one)
    film = encode(tmp_path / "film.mp4", over(barred, "MARK", (0.12, 0.92)))
    for cut, name in (({"crop_bars": True}, "cropped"), ({}, "whole")):
        ((record, _),) = curated(film, tmp_path / name, scores={"graphics": True}, cut=cut)
        assert record.scores["static_graphic"] == 0, name
    film = encode(tmp_path / "within.mp4", over(barred, "MARK", (0.12, 0.7)))
    ((record, _),) = curated(film, tmp_path / "within", scores={"graphics": True}, cut={"crop_bars": True})
    assert record.height == pytest.approx(HEIGHT - 96, abs=4)
    assert record.width == WIDTH
    assert record.scores["static_graphic"] > 0.001


@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
@pytest.mark.parametrize("name", ["bbb_opening.mp4", "plush_gopher_vertical.mp4", "popeye_roc.mkv"])
def test_filmed_scenes_have_no_graphic_until_a_star_lies_over_them(name: str) -> None:
    pictures = filmed(name, 6.0)
    assert scores_of_all(pictures)["static_graphic"] == 0
    assert scores_of_all(starred(pictures, 0.6))["static_graphic"] > 0.0002


def scores_of_all(pictures: Iterable[Picture]) -> dict[str, float]:
    return graphic_scores(edges_of(pictures, every=1))
