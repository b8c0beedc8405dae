"""One number for Prometheus, and what it means."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True)
class Metric:
    """Metric family of Prometheus.

    Attributes:
        name: name with its unit, without ``_total``.
        meaning: meaning of the number, as Prometheus' help.
        labels: names of the labels.
        counter: True for a number that only grows; Prometheus adds ``_total`` to the name.
    """

    name: str
    meaning: str
    labels: tuple[str, ...]
    counter: bool = False


class MetricSample(NamedTuple):
    """Number of a metric at one scrape.

    Attributes:
        metric: the metric.
        labels: values of its labels.
        value: the number.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float


class Place(Protocol):
    """A folder or a prefix with numbers.

    Attributes:
        name: its name in labels.
    """

    name: str

    def samples(self) -> list[MetricSample]:
        """Return the current numbers.

        Raises:
            UsageError: it holds nothing of the kind any more.
            RunError: it cannot be read now.
        """
