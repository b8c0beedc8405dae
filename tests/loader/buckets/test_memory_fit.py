"""Memory fitted to measured peaks: never below one, and refused where it would mislead."""

import numpy as np
import pytest

from reelweave.loader.buckets.memory_fit import fit_memory
from reelweave.loader.errors import UsageError


def measured(noise: float = 0.0, bend: float = 0.0, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> str:
    generator = np.random.default_rng(0)
    lines = ["batch,length,step_s,peak_gib"]
    for batch in sizes:
        for length in (2000, 9000, 15000):
            tokens = batch * length
            peak = 40 + 0.0006 * tokens + bend * tokens**2 + noise * generator.random()
            lines.append(f"{batch},{length},1.0,{peak}")
    return "\n".join(lines)


def test_what_fits_is_what_was_measured() -> None:
    fit = fit_memory(measured(), "bench.csv")
    assert fit.tokens(112) == pytest.approx(120_000, rel=1e-4)
    assert fit.worst_error < 1e-9


def test_no_measured_peak_lies_above_the_line() -> None:
    fit = fit_memory(measured(noise=2.0), "bench.csv")
    for line in measured(noise=2.0).splitlines()[1:]:
        batch, length, _, peak = map(float, line.split(","))
        assert fit.fixed_gib + fit.token_gib * batch * length >= peak - 1e-9


@pytest.mark.parametrize(
    ("text", "limit", "words"),
    [
        ("batch,length,step_s\n1,2,3", 80, "no column peak_gib"),
        ("batch,length,peak_gib\n1,2000,50\n2,2000,52", 80, "peaks of 2 sizes"),
        (measured(bend=1e-8), 80, "off a line"),
        (measured(), 40.1, "40 GiB are taken before the first"),
    ],
)
def test_what_would_mislead_is_refused(text: str, limit: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fit_memory(text, "bench.csv").tokens(limit)
