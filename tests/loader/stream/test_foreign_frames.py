"""Stream-copied cuts and clips of variable rate in a stranger's tar reach training as a player shows them."""

from itertools import pairwise

import numpy as np
import pytest

from reelweave.curate.foreign.run import index_tars
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.read.decode import decode
from reelweave.loader.stream.video_stream import VideoStream
from tests.foreign_tars import by_webdataset
from tests.loader.stream_clips import BUCKETS, config
from tests.media import read_number
from tests.player import RATE, cut_by_copy, encode_numbered, numbers_shown

H264 = "-c:v libx264 -g 48 -bf 3 -pix_fmt yuv420p"
OFTEN_DROPPED = r"select=not(between(n\,30\,37))*not(mod(n\,3)*between(n\,60\,90))"
FPS = 12.5


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The numbers that a player shows of each sample, by key; their tar is indexed in the folder ``indexed``."""
    folder = tmp_path_factory.mktemp("foreign")
    whole = encode_numbered(folder / "whole.mp4", 100, H264)
    clips = {f"cut{at:g}": cut_by_copy(whole, folder / f"{at}.mp4", f"-ss {at}") for at in (0.52, 1.04, 2.0)}
    clips["varying"] = encode_numbered(folder / "varying.mp4", 120, H264, OFTEN_DROPPED)
    by_webdataset(
        folder / "indexed" / "a.tar",
        [
            (key.replace(".", "-"), {"mp4": path.read_bytes(), "txt": b"a clip"})
            for key, path in clips.items()
        ],
    )
    found = index_tars(str(folder / "indexed"), workers=1)
    assert any(note.startswith("1 sample has a variable frame rate") for note in found.notes)
    return {
        "folder": folder / "indexed",
        **{key.replace(".", "-"): numbers_shown(path) for key, path in clips.items()},
    }


@pytest.fixture
def foreign(shown: dict[str, list[int]]) -> Dataset:
    return open_dataset(shown["folder"])


def buckets(mode: str, **changes: object) -> BucketConfig:
    sampling = {"mode": mode, **changes}
    return BUCKETS.model_copy(update={"sampling": type(BUCKETS.sampling)(**sampling), "max_crop": 0.5})


def test_the_index_counts_what_a_player_shows(foreign: Dataset, shown: dict[str, list[int]]) -> None:
    rows = {row["key"]: row for row in map(foreign.row, foreign.row_numbers.values())}
    for key, row in rows.items():
        assert row["frames"] == len(shown[key])
        assert key == "varying" or row["fps"] == pytest.approx(RATE, rel=1e-6)
        assert dict(row["attributes"]) == ({"frame_rate": "variable"} if key == "varying" else {})


@pytest.mark.parametrize("decoder", ["pyav", "decord"])
@pytest.mark.parametrize("mode", ["all", "window"])
def test_frames_follow_each_other_as_in_a_player(
    foreign: Dataset, shown: dict[str, list[int]], mode: str, decoder: str
) -> None:
    seen = set[str]()
    for batch in VideoStream(foreign, config(buckets=buckets(mode), decoder=decoder, epochs=1)):
        for key, video_CTHW in zip(batch.keys, batch.video_BCTHW.numpy(), strict=True):
            numbers = [read_number(picture) for picture in video_CTHW.transpose(1, 2, 3, 0)]
            first = shown[key].index(numbers[0])
            assert numbers == shown[key][first : first + len(numbers)]
            assert mode != "all" or first == 0
            seen.add(key)
    assert seen == set(shown) - {"folder"}


def test_frames_of_a_variable_rate_are_chosen_by_their_times(
    foreign: Dataset, shown: dict[str, list[int]]
) -> None:
    """Numbers count frames of 25 per second, so they are times; 12.5 a second is every second one."""
    sampling = buckets("fps", fps=FPS)
    streams = [
        VideoStream(foreign, config(buckets=sampling, decode=decoded, epochs=20)) for decoded in (True, False)
    ]
    gaps = list[int]()
    for batch, encoded in zip(*streams, strict=True):
        for number, (key, video_CTHW) in enumerate(zip(batch.keys, batch.video_BCTHW.numpy(), strict=True)):
            own = np.empty(video_CTHW.shape, np.uint8)
            decode(encoded.media[number].numpy().tobytes(), encoded.media.frames[number], own, upright=False)
            assert (own == video_CTHW).all()
            numbers = [read_number(picture) for picture in video_CTHW.transpose(1, 2, 3, 0)]
            if key == "varying":
                asked = numbers[0] + np.arange(len(numbers)) * RATE / FPS
                gaps += [after - before for before, after in pairwise(numbers)]
                # The frame shown at the time asked for begins then, or is held since before.
                there = np.array(shown[key])
                assert numbers == [int(there[there <= want].max()) for want in asked]
            else:
                assert {after - before for before, after in pairwise(numbers)} == {2}
    assert max(gaps) > 2  # the case met the missing frames
