"""A forecast scales a sample to the whole and says how sure it is."""

import numpy as np
import pytest

from curate.forecast import ForecastConfig, Measured, choose_sample, forecast
from curate.inputs import SourceRef


def population(count: int, noise: float) -> tuple[list[SourceRef], list[Measured]]:
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.normal(17, 1, count)).astype(int)
    factors = np.exp(rng.normal(0, noise, count)) if noise else np.ones(count)
    sources = [SourceRef(f"raw/{number}.mp4", int(size), "v") for number, size in enumerate(sizes)]
    measured = [
        Measured(
            int(size),
            int(factor * size / 1e6),
            int(0.4 * factor * size),
            size / 3e5,
            factor * size / 1e6,
            0.0,
        )
        for size, factor in zip(sizes, factors, strict=True)
    ]
    return sources, measured


def test_the_sample_is_spread_over_the_sizes_and_always_the_same() -> None:
    sources, _ = population(100, 0.0)
    sample = choose_sample(sources, 10)
    sizes = sorted(source.size for source in sources)
    ranks = [sizes.index(source.size) for source in sample]
    assert ranks == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]
    assert choose_sample(sources[::-1], 10) == sample


def test_a_small_input_is_its_own_sample() -> None:
    sources, measured = population(5, 0.3)
    assert len(choose_sample(sources, 20)) == 5
    found = forecast(measured, sources, ForecastConfig())
    assert found.clips.value == pytest.approx(sum(one.clips for one in measured))
    assert found.clips.low == found.clips.high == found.clips.value


def test_what_goes_with_the_bytes_is_forecast_exactly() -> None:
    sources, measured = population(400, 0.0)
    by_size = {one.size: one for one in measured}
    found = forecast([by_size[one.size] for one in choose_sample(sources, 20)], sources, ForecastConfig())
    assert found.core_hours.value == pytest.approx(sum(one.core_s for one in measured) / 3600, rel=1e-6)
    assert found.price.value == pytest.approx(found.core_hours.value * 0.04, rel=1e-6)


def test_the_interval_holds_the_truth_nineteen_times_of_twenty() -> None:
    sources, measured = population(2000, 0.5)
    truth = sum(one.clip_bytes for one in measured) / 1e9
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        chosen = rng.choice(2000, 40, replace=False)
        estimate = forecast([measured[place] for place in chosen], sources, ForecastConfig()).clip_gb
        hits += estimate.low <= truth <= estimate.high
    assert hits >= 175
