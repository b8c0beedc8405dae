"""Nested sample ranges, as Megatron-Energon (7.4) defines them for a MetadatasetV2."""

import re
from dataclasses import dataclass

_PERCENT = re.compile(r"\s*(\d{1,3}(?:\.\d{1,12})?)%")


@dataclass(frozen=True)
class SampleRange:
    """Range of samples: ``first`` to ``last`` (exclusive; None is the end), then a share of these from low to high."""

    first: int = 0
    last: int | None = None
    low: float = 0.0
    high: float = 1.0

    @property
    def absolute(self) -> bool:
        """True if the range counts samples."""
        return (self.first, self.last) != (0, None)

    def of(self, samples: int) -> tuple[int, int]:
        """Return the range of a given number of samples, with exclusive end.

        Raises:
            ValueError: the range exceeds the samples.
        """
        last = samples if self.last is None else self.last
        if last > samples or self.first > last:
            raise ValueError(f"[{self.first}, {last}] reaches over the end of {samples} samples")
        # Truncated floats, as in Energon: 29 % of 100 samples are 28.
        start, stop = (self.first + int((last - self.first) * share) for share in (self.low, self.high))
        return start, stop


def span_of(start: object, end: object) -> SampleRange:
    """Parse a range that a file writes as ``[start, end]``.

    Raises:
        ValueError: the values are no range.
    """
    if type(start) is int and (type(end) is int or end == "end"):
        if start < 0 or (isinstance(end, int) and end < start):
            raise ValueError(f"[{start}, {end}] is no range of samples")
        return SampleRange(first=start, last=end if isinstance(end, int) else None)
    low, high = (_PERCENT.fullmatch(str(text)) for text in (start, end))
    if not low or not high:
        raise ValueError(f"[{start}, {end}] is no range; write [0%, 80%], [100, 200] or [100, end]")
    span = SampleRange(low=float(low[1]) / 100, high=float(high[1]) / 100)
    if not span.low <= span.high <= 1:
        raise ValueError(f"[{start}, {end}] does not lie between 0% and 100%")
    return span


def within(inner: SampleRange | None, outer: SampleRange | None) -> SampleRange:
    """Return the part of ``inner`` that remains if an enclosing node keeps only ``outer``.

    Raises:
        ValueError: ``outer`` counts samples, which only a dataset's own range may.
    """
    if outer is None:
        return inner or SampleRange()
    if outer.absolute:
        raise ValueError("only a dataset can be cut by numbers of samples; use percentages above it")
    inner = inner or SampleRange()
    share = inner.high - inner.low
    return SampleRange(inner.first, inner.last, inner.low + outer.low * share, inner.low + outer.high * share)
