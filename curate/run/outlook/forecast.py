"""Forecast of the clips and the cost of a curation, from a sample of its sources: pure functions.

Every figure is estimated by its ratio to something that headers tell of all sources. Clips and their seconds
follow the sources' duration, and bytes of clips duration and picture size. Processor time follows frames,
picture size and codec. The interval is that of a ratio estimate from a sample without replacement (Cochran,
Sampling Techniques, 6.4), with Student's t, since samples are small.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from reelweave.curate.sources.headers import SourceHeader
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.settings import Settings

_T_95 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
)  # Student's t by degrees of freedom, from 1
_NORMAL_95 = 1.96
_LEAST_REST = 1e-3  # share of a sample beside one source that makes up all of it
_BYTES_OF_PIXELS = 0.75  # clips of twice the pixels have 2**0.75 times the bytes


class ForecastConfig(Settings):
    """Size of the sample, and prices."""

    sample: int = Field(20, ge=2, description="sources processed in full; their results are kept for the run")
    headers: int = Field(
        2000,
        ge=2,
        description="maximum number of sources whose headers are read for duration, size and codec; others are"
        " estimated by bytes",
    )
    core_hour_price: float = Field(0.04, ge=0, description="price of one CPU core-hour")
    gpu_hour_price: float = Field(2.5, ge=0, description="price of one GPU-hour")
    gb_month_price: float = Field(0.023, ge=0, description="price of keeping 10^9 bytes for a month")
    currency: str = Field("USD", max_length=8, description="currency of the prices")


@dataclass(frozen=True)
class SourceCost:
    """Clips and cost of one source of the sample.

    Attributes:
        uri: URI of the source.
        clips: Number of kept clips.
        clip_bytes: Size of these clips.
        clip_s: Duration of these clips in seconds.
        core_s: Processor seconds.
        gpu_s: Seconds that a GPU was held.
    """

    uri: str
    clips: int
    clip_bytes: int
    clip_s: float
    core_s: float
    gpu_s: float


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % confidence interval, if the sample represents the rest."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Clips and cost of all sources.

    Attributes:
        sources: Number of sources.
        sampled: Number of those in the sample.
        source_bytes: Size of all sources.
        clips: Number of kept clips.
        clip_gb: Size of the clips, 10^9 bytes.
        clip_hours: Duration of the clips.
        clip_mbps: Bit rate of the clips, megabits per second: that of their sources where packets are copied.
        core_hours: Hours of CPU cores.
        gpu_hours: Hours of GPUs.
        price: Price of computing.
        price_a_month: Price of storing the clips.
        currency: Currency of the prices.
    """

    sources: int
    sampled: int
    source_bytes: int
    clips: Estimate
    clip_gb: Estimate
    clip_hours: Estimate
    clip_mbps: Estimate
    core_hours: Estimate
    gpu_hours: Estimate
    price: Estimate
    price_a_month: Estimate
    currency: str


@dataclass(frozen=True)
class Extent:
    """Size of a source by several measures, estimated from its header and its bytes.

    Attributes:
        seconds: Duration.
        pixel_s: Duration times a power of the picture's size that is proportional to the bytes of its clips.
        effort: Work of decoding, scoring and encoding, in pixels.
    """

    seconds: float
    pixel_s: float
    effort: float


NOTHING = Extent(0.0, 0.0, 0.0)


def extents(sources: Sequence[SourceRef], headers: Mapping[str, SourceHeader | None]) -> dict[str, Extent]:
    """Return the extent of every source, by URI.

    A source without a readable header has none. One whose header was not read, or holds no duration, has the
    average extent per byte of the others.

    Args:
        sources: All sources.
        headers: Headers of some sources, None for one that cannot be read.
    """
    by_uri: dict[str, Extent] = {}
    for uri, header in headers.items():
        if header is None:
            by_uri[uri] = NOTHING
        elif header.seconds is not None:
            seconds = max(0.0, header.seconds)
            pixel_s = seconds * header.pixels**_BYTES_OF_PIXELS
            by_uri[uri] = Extent(seconds, pixel_s, seconds * header.effort)
    sizes = {source.uri: max(0, source.size) for source in sources}
    held = sum(sizes[uri] for uri in by_uri)
    per_byte = [
        sum(getattr(extent, name) for extent in by_uri.values()) / held if held else 1.0
        for name in ("seconds", "pixel_s", "effort")
    ]
    return {
        uri: by_uri.get(uri) or Extent(*(rate * size for rate in per_byte)) for uri, size in sizes.items()
    }


def choose_sample(sources: Sequence[SourceRef], extent: Mapping[str, Extent], count: int) -> list[SourceRef]:
    """Return sources spread evenly over their effort, without those that have none; same input, same sample."""
    with_effort = [source for source in sources if extent[source.uri].effort > 0]
    by_effort = sorted(with_effort, key=lambda source: (extent[source.uri].effort, source.uri))
    count = min(count, len(by_effort))
    return [by_effort[(2 * index + 1) * len(by_effort) // (2 * count)] for index in range(count)]


def forecast(
    measured: Sequence[SourceCost],
    sources: Sequence[SourceRef],
    extent: Mapping[str, Extent],
    config: ForecastConfig,
    *,
    copies: bool = False,
) -> Forecast:
    """Scale the clips and the cost of the sample to all sources.

    Args:
        measured: At least one source of the sample.
        sources: All sources, those of the sample too.
        extent: Extent of all sources, by URI.
        config: Prices.
        copies: True where clips have the packets of their sources, and so go with their bytes.
    """
    # Sources that give anything; clips of copied packets go with their bytes, if all are known.
    working = {uri: source_extent for uri, source_extent in extent.items() if source_extent.effort > 0}
    sizes = {source.uri: float(source.size) for source in sources if source.uri in working}
    goes_by_bytes = copies and min(sizes.values(), default=0.0) > 0

    def scale_estimate(values: Sequence[float], by: str, unit: float = 1.0) -> Estimate:
        extent_of = sizes if by == "bytes" else {uri: getattr(one, by) for uri, one in working.items()}
        held = [extent_of[cost.uri] for cost in measured]
        estimate = _ratio_estimate(values, held, sum(extent_of.values()), len(extent_of))
        return Estimate(estimate.value / unit, estimate.low / unit, estimate.high / unit)

    # Each quantity grows with what it depends on most: bytes, pixels, effort or seconds.
    clip_gb = scale_estimate(
        [cost.clip_bytes for cost in measured], "bytes" if goes_by_bytes else "pixel_s", 1e9
    )
    core_hours = scale_estimate([cost.core_s for cost in measured], "effort", 3600)
    gpu_hours = scale_estimate([cost.gpu_s for cost in measured], "seconds", 3600)
    return Forecast(
        sources=len(sources),
        sampled=len(measured),
        source_bytes=sum(source.size for source in sources if source.size > 0),
        clips=scale_estimate([cost.clips for cost in measured], "seconds"),
        clip_gb=clip_gb,
        clip_hours=scale_estimate([cost.clip_s for cost in measured], "seconds", 3600),
        clip_mbps=_mean_estimate(
            [8e-6 * cost.clip_bytes for cost in measured], [cost.clip_s for cost in measured], len(working)
        ),
        core_hours=core_hours,
        gpu_hours=gpu_hours,
        price=_price_run((core_hours, config.core_hour_price), (gpu_hours, config.gpu_hour_price)),
        price_a_month=_price_run((clip_gb, config.gb_month_price)),
        currency=config.currency,
    )


def _price_run(*parts: tuple[Estimate, float]) -> Estimate:
    return Estimate(
        sum(part.value * price for part, price in parts),
        sum(part.low * price for part, price in parts),
        sum(part.high * price for part, price in parts),
    )


def _ratio_estimate(
    values: Sequence[float], held: Sequence[float], total: float, population: int
) -> Estimate:
    value, error = total * sum(values) / sum(held), total * _ratio_error(values, held, population)
    if not error:
        return Estimate(value, value, value)
    return Estimate(value, max(sum(values), value - error), value + error)  # clips of the sample are certain


def _mean_estimate(values: Sequence[float], held: Sequence[float], population: int) -> Estimate:
    """Return the ratio of values to what holds them, in the whole; 0 where the sample holds nothing."""
    if not sum(held):
        return Estimate(0.0, 0.0, 0.0)
    ratio, error = sum(values) / sum(held), _ratio_error(values, held, population)
    return Estimate(ratio, max(0.0, ratio - error), ratio + error)


def _ratio_error(values: Sequence[float], held: Sequence[float], population: int) -> float:
    """Return half the interval of a ratio of sums, from those of a sample."""
    count, size_total = len(values), sum(held)
    if population <= count:
        return 0.0
    if count < 2:
        return math.inf
    # A source that makes up much of the sample bends the ratio its own way: HC3 of MacKinnon and White (1985).
    ratio = sum(values) / size_total
    residuals = sum(
        ((measured - ratio * size) / max(1 - size / size_total, _LEAST_REST)) ** 2
        for measured, size in zip(values, held, strict=True)
    )
    error = math.sqrt((1 - count / population) * residuals / (count - 1) / count)
    # A sample that holds little of the whole, by extent, says less of it.
    return _student(count - 1) * error / (size_total / count)


def _student(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t."""
    if freedom <= len(_T_95):
        return _T_95[freedom - 1]
    return _NORMAL_95 + (_NORMAL_95**3 + _NORMAL_95) / (4 * freedom)
