"""Holes in the time stamps: gaps between shots, pictures that are held, and what is written and scored of them."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from reelweave.curate.frames.frame_times import timeline
from reelweave.curate.ledger.records import Record
from reelweave.curate.shots.spans import SpanConfig, spans
from tests.curate.cut.test_lookahead import config, curated
from tests.cutting import curated as records_of
from tests.filter_footage import encode
from tests.media import numbered_frame, read_numbers, write_video
from tests.thorough import beyond

_TICK_S = 1 / 1000


def stamps(rng: np.random.Generator, frames: int) -> NDArray[np.float64]:
    """Times of a film that stops now and then, for moments and for hours."""
    kinds = {"steady": 1 / 25, "jitter": 0.02 + rng.random() * 0.08, "slow": rng.uniform(0.2, 9)}
    usual = kinds[str(rng.choice(list(kinds)))]
    gaps = usual * rng.uniform(0.5, 1.5, frames) if usual != 1 / 25 else np.full(frames, usual)
    held = rng.random(frames) < rng.choice([0, 0.02, 0.3])
    gaps[held] += 10 ** rng.uniform(-1, 4, int(held.sum()))
    return np.cumsum(np.maximum(gaps.round(3), _TICK_S)) - gaps[0]


def test_what_is_written_keeps_the_limits_whatever_the_time_stamps() -> None:
    rng = np.random.default_rng(18)
    kept = 0
    for _ in range(300):
        ticks = (stamps(rng, int(rng.integers(1, 300))) * 1000).round().astype(int).tolist()
        durations = [*np.diff(ticks).tolist(), int(10 ** rng.uniform(0, 7))]
        line = timeline(ticks, Fraction(1, 1000), durations[-1], Fraction(25), (), 60.0, durations=durations)
        rules = SpanConfig(
            min_clip_s=float(rng.choice([0.1, 2.0])),
            max_clip_s=float(rng.choice([2.5, 10.0])),
            max_gap_s=float(rng.choice([0.5, 5.0, 60.0])),
            long_shots=str(rng.choice(["full", "equal", "stride"])),
        )
        found = spans(line, [], None, rules)
        assert found[0].start_s == 0
        assert found[-1].end_s == line.times_s[-1]
        assert all(one.end_s == other.start_s for one, other in pairwise(found))
        for span in found:
            if span.fault is None:
                kept += 1
                rate = float(line.clip_rate(span.first, span.last))
                written_s = len(line.clip_frames(span.first, span.last)) / rate
                slack_s = 0.5 / rate + 1e-3
                assert rules.min_clip_s - slack_s <= written_s <= rules.max_clip_s + 0.1 + slack_s
    assert kept > 500


@pytest.mark.parametrize(
    ("suffix", "hole_s", "reordered"),
    beyond(1, [("mkv", 59.0, 2), ("mp4", 18000.0, 3), ("mp4", 59.0, 0), ("mp4", 18000.0, 0)]),
)
def test_a_long_hole_is_a_gap_of_its_own_and_costs_no_frames(
    suffix: str, hole_s: float, reordered: int, tmp_path: Path
) -> None:
    times_s = [number / 25 + (hole_s if number >= 60 else 0.0) for number in range(120)]
    options = {"bf": str(reordered)}
    path = write_video(tmp_path / f"a.{suffix}", (120,), times_s=times_s, audio=True, options=options)
    found = records_of(path, tmp_path / "out")
    assert [(one.state, one.stage) for one, _ in found] == [
        ("kept", "cut"),
        ("filtered", "gaps"),
        ("kept", "cut"),
    ]
    gap = found[1][0]
    assert (gap.start_s, gap.end_s) == (
        pytest.approx(2.36, abs=0.001),
        pytest.approx(hole_s + 2.4, abs=0.001),
    )
    assert gap.score == pytest.approx(hole_s + 0.04, abs=0.001)
    assert read_numbers(found[0][1]) == list(range(59))
    assert read_numbers(found[2][1]) == list(range(60, 120))
    assert_covered([one for one, _ in found])


def assert_covered(records: Iterable[Record]) -> None:
    assert all(one.end_s == other.start_s for one, other in pairwise(records))


def test_gaps_one_after_the_other_and_a_last_picture_that_never_ends(tmp_path: Path) -> None:
    """What is encoded ahead are the clips of a second pass, and nothing of a gap."""
    holes = {60: 7.0, 61: 6.0, 130: 20.0, 131: 0.7}
    gaps = [1 / 25 + holes.get(number, 0.0) for number in range(200)]
    path = write_video(tmp_path / "a.mp4", (90, 110), times_s=np.cumsum([0.0, *gaps[:-1]]))
    once = curated(path, config(512), tmp_path / "once")
    assert once == curated(path, config(0), tmp_path / "twice")
    records = once[0].records
    assert [one.start_s for one in records if one.stage == "gaps"] == pytest.approx([2.4, 18.2], abs=0.001)
    assert_covered(records)
    assert sum(one.duration_s for one in records) < sum(gaps) - 30


def test_a_picture_that_is_held_weighs_what_it_is_shown(tmp_path: Path) -> None:
    """A recording of a screen scores as the same film does at a constant rate, with all pictures repeated."""
    times_s = [number / 25 + (3.96 if number >= 40 else 0.0) for number in range(101)]
    held = write_video(tmp_path / "held.mp4", (101,), times_s=times_s)
    shown = [int(np.searchsorted(times_s, (slot + 0.5) / 25, "right")) - 1 for slot in range(200)]
    twin = repeated(tmp_path / "twin.mp4", shown)
    settings: dict[str, Any] = {"spans": {"min_clip_s": 1.0}}
    ((one, clip),) = records_of(held, tmp_path / "a", **settings)
    ((other, twin_clip),) = records_of(twin, tmp_path / "b", **settings)
    assert read_numbers(clip) == read_numbers(twin_clip) == shown
    assert one.scores["frozen_share"] == pytest.approx(0.5, abs=0.05)
    for score in ("frozen_share", "duplicate_share", "slideshow", "luminance", "colourfulness", "motion"):
        assert one.scores[score] == pytest.approx(other.scores[score], rel=0.1, abs=0.05), score


def repeated(path: Path, numbers: list[int]) -> Path:
    """A film of numbered frames at 25 per second, some of them several times."""
    return encode(path, [numbered_frame(number, 160, 128) for number in numbers])


def test_a_slow_film_is_not_cut_to_pieces(tmp_path: Path) -> None:
    rules = {"max_gap_s": 0.5}
    path = write_video(tmp_path / "a.mp4", (9,), rate=1)
    ((record, clip),) = records_of(path, tmp_path / "out", spans=rules, stitch={"enabled": True})
    assert (record.state, record.duration_s, read_numbers(clip)) == ("kept", 9.0, list(range(9)))
