"""A forecast scales a sample to the whole and says how sure it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.frames.probe import ProbeConfig
from reelweave.curate.run.curate import curate
from reelweave.curate.run.outlook.forecast import (
    Estimate,
    Extent,
    ForecastConfig,
    SourceCost,
    choose_sample,
    extents,
    forecast,
)
from reelweave.curate.run.sample_run import forecast_curation
from reelweave.curate.sources.headers import SourceHeader, read_headers
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.storage import StorageConfig
from tests.media import write_video
from tests.thorough import thorough

Population = tuple[list[SourceRef], list[SourceCost], dict[str, Extent]]


def population(count: int, noise: float) -> Population:
    """Sources whose bytes say nothing of their length, and what they give: a clip for every ten seconds."""
    rng = np.random.default_rng(3)
    seconds = np.exp(rng.normal(5, 1, count))
    factors = np.exp(rng.normal(0, noise, count)) if noise else np.ones(count)
    sources = [
        SourceRef(f"raw/{number}.mp4", int(size), "v")
        for number, size in enumerate(np.exp(rng.normal(17, 1, count)))
    ]
    measured = [
        SourceCost(source.uri, int(factor * s / 10), int(factor * s * 3e5), 0.9 * s, factor * s / 2, 0.0)
        for source, s, factor in zip(sources, seconds, factors, strict=True)
    ]
    extent = {source.uri: Extent(s, s, s) for source, s in zip(sources, seconds, strict=True)}
    return sources, measured, extent


def test_the_sample_is_spread_over_the_work_and_always_the_same() -> None:
    sources, _, extent = population(100, 0.0)
    sample = choose_sample(sources, extent, 10)
    efforts = sorted(one.effort for one in extent.values())
    assert [efforts.index(extent[one.uri].effort) for one in sample] == [
        5,
        15,
        25,
        35,
        45,
        55,
        65,
        75,
        85,
        95,
    ]
    assert choose_sample(sources[::-1], extent, 10) == sample


def test_a_small_input_is_its_own_sample() -> None:
    sources, measured, extent = population(5, 0.3)
    assert len(choose_sample(sources, extent, 20)) == 5
    found = forecast(measured, sources, extent, ForecastConfig())
    assert found.clips.value == pytest.approx(sum(one.clips for one in measured))
    assert found.clips.low == found.clips.high == found.clips.value


def test_clips_of_copied_packets_go_with_the_bytes_of_their_sources() -> None:
    sources, measured, extent = population(200, 0.0)
    costs = {
        cost.uri: replace(cost, clip_bytes=source.size // 2)
        for cost, source in zip(measured, sources, strict=True)
    }
    sample = [costs[one.uri] for one in choose_sample(sources, extent, 20)]
    total_gb = sum(cost.clip_bytes for cost in costs.values()) / 1e9
    found = forecast(sample, sources, extent, ForecastConfig(), copies=True)
    assert found.clip_gb.value == pytest.approx(total_gb, rel=1e-6)
    assert forecast(sample, sources, extent, ForecastConfig()).clip_gb.value != pytest.approx(
        total_gb, rel=0.1
    )
    unknown = [replace(sources[0], size=0), *sources[1:]]  # as a server that states no size
    assert forecast(sample, unknown, extent, ForecastConfig(), copies=True).clip_gb.value > 0


def test_the_bit_rate_of_clips_is_that_of_the_sample_with_its_own_interval() -> None:
    sources, measured, extent = population(2000, 0.5)
    truth = 8e-6 * sum(one.clip_bytes for one in measured) / sum(one.clip_s for one in measured)
    rng = np.random.default_rng(5)
    found = [
        forecast([measured[at] for at in chosen], sources, extent, ForecastConfig()).clip_mbps
        for chosen in (rng.choice(2000, 40, replace=False) for _ in range(200))
    ]
    assert sum(one.low <= truth <= one.high for one in found) >= 175
    whole = forecast(measured, sources, extent, ForecastConfig()).clip_mbps
    assert whole == Estimate(*[pytest.approx(truth)] * 3)
    # A sample without any clip, or with all of its seconds in one source.
    nothing = [replace(one, clips=0, clip_bytes=0, clip_s=0.0) for one in measured[:3]]
    assert forecast(nothing, sources, extent, ForecastConfig()).clip_mbps == Estimate(0.0, 0.0, 0.0)
    one = forecast([measured[0], *nothing[1:]], sources, extent, ForecastConfig()).clip_mbps
    assert one.low <= one.value <= one.high


def test_what_goes_with_the_duration_is_forecast_exactly() -> None:
    sources, measured, extent = population(400, 0.0)
    by_uri = {one.uri: one for one in measured}
    sample = [by_uri[one.uri] for one in choose_sample(sources, extent, 20)]
    found = forecast(sample, sources, extent, ForecastConfig())
    assert found.core_hours.value == pytest.approx(sum(one.core_s for one in measured) / 3600, rel=1e-6)
    assert found.price.value == pytest.approx(found.core_hours.value * 0.04, rel=1e-6)
    assert found.clip_hours.high == pytest.approx(found.clip_hours.low, rel=1e-6)


@pytest.mark.parametrize("sample", [4, 40])
def test_the_interval_holds_the_truth_nineteen_times_of_twenty(sample: int) -> None:
    sources, measured, extent = population(2000, 0.5)
    truth = sum(one.clip_bytes for one in measured) / 1e9
    rng = np.random.default_rng(5)

    def estimate() -> Estimate:
        chosen = rng.choice(2000, sample, replace=False)
        return forecast([measured[place] for place in chosen], sources, extent, ForecastConfig()).clip_gb

    found = [estimate() for _ in range(200)]
    assert sum(one.low <= truth <= one.high for one in found) >= 175


def test_one_source_says_nothing_of_how_sure_it_is() -> None:
    sources, measured, extent = population(10, 0.5)
    assert forecast(measured[:1], sources, extent, ForecastConfig()).clips.high == float("inf")


def test_a_source_of_unknown_length_goes_by_its_bytes_and_an_unreadable_one_for_nothing() -> None:
    sources = [SourceRef(name, size, "v") for name, size in (("a", 100), ("b", 300), ("c", 50), ("d", 9))]
    known = SourceHeader(seconds=200.0, pixels=16, effort=10.0)
    headers = {"a": known, "c": SourceHeader(None, 16, 10.0), "d": None}
    found = extents(sources, headers)
    assert found["a"] == Extent(200.0, 200.0 * 8, 2000.0)
    assert found["d"].effort == 0
    per_byte = 200.0 / 109  # the unreadable one's bytes hold nothing, and others like it may come
    assert found["b"].seconds == pytest.approx(300 * per_byte)
    assert found["c"].seconds == pytest.approx(50 * per_byte)


def test_headers_tell_length_size_and_codec(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", (50,))
    write_video(tmp_path / "b.mkv", (25,), size=(320, 256))
    write_video(tmp_path / "c.avi", (50,), codec="mpeg4")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    sources = list_sources([str(tmp_path)], StorageConfig())
    found = {
        Path(uri).name: one for uri, one in read_headers(sources, StorageConfig(), ProbeConfig()).items()
    }
    assert found["broken.mp4"] is None
    assert {name: round(one.seconds or 0, 2) for name, one in found.items() if one} == {
        "a.mp4": 2.0,
        "b.mkv": 1.0,
        "c.avi": 2.0,
    }
    a, b, c = found["a.mp4"], found["b.mkv"], found["c.avi"]
    assert a is not None
    assert b is not None
    assert c is not None
    assert a.effort < b.effort < 4 * a.effort
    assert c.effort < a.effort


@thorough
def test_a_forecast_from_a_part_meets_what_comes(tmp_path: Path) -> None:
    # Long films of few bytes and short ones of many: bytes say the opposite of what comes.
    for number in range(6):
        many = number % 2
        write_video(
            tmp_path / f"raw/{number}.mp4",
            (40,) if many else (40, 40, 40, 40),
            first_scene=5 * number,
            options={"crf": "4" if many else "34"},
        )
    config = CurateConfig.model_validate(
        {"run": {"runner": "sequential", "isolate": False}, "spans": {"min_clip_s": 1.0}}
    )
    rates = ForecastConfig(sample=3)
    found = forecast_curation([str(tmp_path / "raw")], str(tmp_path / "part"), config, rates)
    assert not (tmp_path / "part/.ledger/status.json").exists()
    came = curate([str(tmp_path / "raw")], str(tmp_path / "whole"), config).manifest.totals
    assert found.clips.value == pytest.approx(came.samples, rel=0.2)
    assert found.clip_hours.value == pytest.approx(came.duration_s / 3600, rel=0.1)
    assert found.clips.low <= came.samples <= found.clips.high
