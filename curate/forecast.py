"""What a curation will give and cost, from a sample of its sources: pure functions.

Everything is estimated by its ratio to the bytes of the sources, which are known without reading them. The
interval is that of a ratio estimate from a sample without replacement (Cochran, Sampling Techniques, 6.4).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from curate.inputs import SourceRef

_SIGMAS = 2.0  # about 95 % of samples


class ForecastConfig(BaseModel, frozen=True, extra="forbid"):
    """How large the sample is, and what things cost."""

    sample: int = Field(20, ge=2, description="sources worked on; what comes of them is kept for the run")
    core_hour_price: float = Field(0.04, ge=0, description="price of one CPU core for an hour")
    gpu_hour_price: float = Field(2.5, ge=0, description="price of one GPU for an hour")
    gb_month_price: float = Field(0.023, ge=0, description="price of keeping 10^9 bytes for a month")
    currency: str = Field("USD", max_length=8, description="that the prices are in")


@dataclass(frozen=True)
class Measured:
    """What one source of the sample gave and cost.

    Attributes:
        size: bytes of the source.
        clips: kept.
        clip_bytes: of them.
        clip_s: seconds of them.
        core_s: seconds of CPU.
        gpu_s: seconds a GPU was held.
    """

    size: int
    clips: int
    clip_bytes: int
    clip_s: float
    core_s: float
    gpu_s: float


@dataclass(frozen=True)
class Estimate:
    """A number and the interval it lies in about 19 times of 20, if the sample is like the rest."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """What is to be expected of all sources.

    Attributes:
        sources: in all.
        sampled: of them.
        source_bytes: in all.
        clips: kept.
        clip_gb: 10^9 bytes of clips.
        clip_hours: of footage kept.
        core_hours: of CPU.
        gpu_hours: of GPU.
        price: of computing, at the given rates.
        price_a_month: of keeping the clips.
        currency: of the prices.
    """

    sources: int
    sampled: int
    source_bytes: int
    clips: Estimate
    clip_gb: Estimate
    clip_hours: Estimate
    core_hours: Estimate
    gpu_hours: Estimate
    price: Estimate
    price_a_month: Estimate
    currency: str


def choose_sample(sources: Sequence[SourceRef], count: int) -> list[SourceRef]:
    """Sources spread evenly over the sizes, the same for the same input; those without bytes are left out."""
    by_size = sorted((source for source in sources if source.size > 0), key=lambda one: (one.size, one.uri))
    count = min(count, len(by_size))
    return [by_size[(2 * place + 1) * len(by_size) // (2 * count)] for place in range(count)]


def forecast(measured: Sequence[Measured], sources: Sequence[SourceRef], config: ForecastConfig) -> Forecast:
    """Scales what the sample gave and cost to all sources.

    Args:
        measured: at least one source of the sample.
        sources: all, those of the sample too.
        config: prices.
    """
    total = sum(source.size for source in sources if source.size > 0)
    sizes = [one.size for one in measured]

    def scaled(values: Sequence[float], unit: float = 1.0) -> Estimate:
        found = _ratio_estimate(values, sizes, total, len(sources))
        return Estimate(found.value / unit, found.low / unit, found.high / unit)

    clip_bytes = [one.clip_bytes for one in measured]
    prices = [
        one.core_s / 3600 * config.core_hour_price + one.gpu_s / 3600 * config.gpu_hour_price
        for one in measured
    ]
    return Forecast(
        sources=len(sources),
        sampled=len(measured),
        source_bytes=total,
        clips=scaled([one.clips for one in measured]),
        clip_gb=scaled(clip_bytes, 1e9),
        clip_hours=scaled([one.clip_s for one in measured], 3600),
        core_hours=scaled([one.core_s for one in measured], 3600),
        gpu_hours=scaled([one.gpu_s for one in measured], 3600),
        price=scaled(prices),
        price_a_month=scaled([size * config.gb_month_price for size in clip_bytes], 1e9),
        currency=config.currency,
    )


def against_actual(
    expected: Mapping[str, Estimate], actual: Mapping[str, float]
) -> list[tuple[str, Estimate, float]]:
    """(name, forecast, actual) of every figure that has both."""
    return [(name, estimate, actual[name]) for name, estimate in expected.items() if name in actual]


def _ratio_estimate(values: Sequence[float], sizes: Sequence[int], total: int, population: int) -> Estimate:
    ratio = sum(values) / sum(sizes)
    value = ratio * total
    count = len(values)
    if count < 2 or population <= count:
        return Estimate(value, value, value)
    residuals = sum((one - ratio * size) ** 2 for one, size in zip(values, sizes, strict=True)) / (count - 1)
    error = population * math.sqrt((1 - count / population) * residuals / count)
    seen = sum(values)  # what the sample gave already cannot be taken away
    return Estimate(value, max(seen, value - _SIGMAS * error), value + _SIGMAS * error)
