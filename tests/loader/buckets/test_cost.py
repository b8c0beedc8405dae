"""Cost models: what a microbatch costs, and fits that know when they are wrong."""

import numpy as np
import pytest

from reelweave.loader.buckets.cost import LinearQuadraticCost, PowerCost, largest_batch, seconds
from reelweave.loader.buckets.cost_fit import Timings, fit_linear_quadratic, fit_power, read_timings
from reelweave.loader.errors import UsageError

WIDE_DIT = LinearQuadraticCost(fixed_s=0.02, token_s=2e-5, square_s=2e-5 / 30_000)
"""A transformer 5,120 wide: attention and the rest weigh the same at about 30,000 tokens."""


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval of 200 resamples takes seconds."""
    monkeypatch.setattr("reelweave.loader.buckets.cost_fit._RESAMPLES", 20)


def shapes() -> tuple[np.ndarray, np.ndarray]:
    lengths = np.geomspace(1000, 60_000, 16).astype(np.int64)
    batch, length = np.meshgrid([1, 2, 4, 8], lengths)
    small = (batch * length).ravel() <= 144_000
    return batch.ravel()[small], length.ravel()[small]


def measured(cost: LinearQuadraticCost | PowerCost, noise: float = 0.01, seed: int = 0) -> Timings:
    batch, length = shapes()
    factor = 1 + noise * np.random.default_rng(seed).normal(size=len(batch))
    return Timings(batch, length, seconds(cost, batch, length) * factor)


def test_a_cost_is_its_formula() -> None:
    assert seconds(WIDE_DIT, 3, 1000) == pytest.approx(0.02 + 3 * (2e-5 * 1000 + 2e-5 / 30_000 * 1000**2))
    assert seconds(PowerCost(fixed_s=1, scale_s=2, exponent=1.5), [1, 2], 100).tolist() == [2001, 4001]


@pytest.mark.parametrize("cost", [WIDE_DIT, PowerCost()])
def test_the_largest_batch_fits_and_one_more_does_not(cost: LinearQuadraticCost | PowerCost) -> None:
    _, length = shapes()
    target_s = float(seconds(cost, 4, 20_000))
    batch = largest_batch(cost, length, target_s)
    assert (seconds(cost, batch, length) <= target_s * (1 + 1e-6)).all()
    assert (seconds(cost, batch + 1, length) > target_s).all()
    assert largest_batch(cost, 20_000, target_s) == 4
    assert largest_batch(cost, 20_000, cost.fixed_s) == 0


def test_a_fit_finds_the_cost_it_was_measured_from() -> None:
    fit = fit_linear_quadratic(measured(WIDE_DIT))
    found = fit.trusted_cost()
    assert found.token_s == pytest.approx(WIDE_DIT.token_s, rel=0.03)
    assert found.square_s == pytest.approx(WIDE_DIT.square_s, rel=0.03)
    assert fit.mean_error < 0.02
    assert fit.worst_error < 0.05
    assert fit.interval < 0.02
    assert fit.r2 > 0.99


def test_the_papers_fit_finds_a_power_law() -> None:
    fit = fit_power(measured(PowerCost(fixed_s=0.1, scale_s=1e-8, exponent=1.9)))
    assert isinstance(fit.cost, PowerCost)
    assert fit.cost.exponent == pytest.approx(1.9, abs=0.03)
    assert fit.worst_error < 0.1


def test_on_a_wide_model_the_power_law_is_the_worse_one_and_refused() -> None:
    timings = measured(WIDE_DIT)
    power, both = fit_power(timings), fit_linear_quadratic(timings)
    assert power.worst_error > 0.4 > 0.05 > both.worst_error
    with pytest.raises(UsageError, match=r"power cost cannot be trusted.* off by"):
        power.trusted_cost()


def test_too_few_or_too_similar_shapes_are_refused_in_words() -> None:
    timings = measured(WIDE_DIT)
    lengths = np.unique(timings.length)
    with pytest.raises(UsageError, match="3 sequence lengths"):
        fit_linear_quadratic(timings.where(np.isin(timings.length, lengths[:3]))).trusted_cost()
    with pytest.raises(UsageError, match="4 times"):
        fit_linear_quadratic(timings.where(np.isin(timings.length, lengths[:5]))).trusted_cost()


def test_noise_widens_the_interval_and_ends_trust() -> None:
    calm, wild = (fit_linear_quadratic(measured(WIDE_DIT, noise)) for noise in (0.01, 0.4))
    assert wild.interval > 5 * calm.interval
    assert wild.doubts
    assert not calm.doubts


@pytest.mark.parametrize(("noise", "times", "trusted"), [(0.02, 1, True), (0.1, 1, False), (0.1, 25, True)])
def test_trust_follows_from_the_time_that_errors_lose(noise: float, times: int, trusted: bool) -> None:
    several = [measured(WIDE_DIT, noise, seed) for seed in range(times)]
    columns = zip(*((one.batch, one.length, one.step_s) for one in several), strict=True)
    fit = fit_linear_quadratic(Timings(*map(np.concatenate, columns)))
    assert (fit.lost < 0.05) == trusted
    if trusted:
        assert fit.trusted_cost() == fit.cost
    else:
        assert fit.lost == pytest.approx(0.12, abs=0.03)  # what a plan's report says of costs 10 % off
        with pytest.raises(UsageError, match=r"lose \d+\.\d% of their time.*several times"):
            fit.trusted_cost()


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_times_that_do_not_grow_are_refused(noise: float) -> None:
    timings = measured(LinearQuadraticCost(fixed_s=0.5, token_s=0, square_s=0), noise)
    with pytest.raises(UsageError, match="hardly grow with B and S"):
        fit_linear_quadratic(timings).trusted_cost()


def test_a_fit_is_the_same_on_every_run() -> None:
    assert fit_linear_quadratic(measured(WIDE_DIT)) == fit_linear_quadratic(measured(WIDE_DIT))


def test_timings_are_read_from_csv() -> None:
    timings = read_timings("frames,batch,length,step_s\n9,2,1000,0.5\n17,1,2000,0.25\n", "bench.csv")
    assert timings.batch.tolist() == [2, 1]
    assert timings.length.tolist() == [1000, 2000]
    assert timings.step_s.tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batch,length\n1,2\n", "no column step_s"),
        ("batch,length,step_s\n", "holds no timings"),
        ("batch,length,step_s\n1,2,3\n1,2,nan\n", "line 3: step_s is 'nan'"),
        ("batch,length,step_s\n1,2.5,3\n", "line 2: length is '2.5'"),
        ("batch,length,step_s\n1,2\n", "line 2: step_s is None"),
        ("batch,length,step_s\n0,2,1\n", "line 2: batch is '0'"),
    ],
)
def test_a_wrong_file_is_named_with_line_and_column(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"bench.csv.*{said}"):
        read_timings(text, "bench.csv")
