"""Prometheus exposition of the numbers of several places."""

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.pipelines.metrics.sample import Metric, MetricSample, Place
from reelweave.pipelines.report.serve.hosts import names_loopback

UP = Metric("reelweave_up", "1 if the place could be read, else 0.", ("place",))


class PlaceCollector(Collector):
    """Numbers of places, read at each scrape.

    A place that cannot be read is 0 in ``reelweave_up``; the others are not affected.

    Args:
        sources: places to read.
        say: called with a message when a place cannot be read any more.
    """

    def __init__(self, sources: Sequence[Place], say: Callable[[str], None]) -> None:
        self._places, self._say = sources, say
        self._down: set[str] = set()
        # Scrapes of several servers at once would read new lines twice, or not at all.
        self._lock = Lock()

    def collect(self) -> Iterator[Family]:
        """Yield a family of each metric of which there are numbers."""
        families: dict[Metric, CounterMetricFamily | GaugeMetricFamily] = {}
        with self._lock:
            samples = [sample for source in self._places for sample in self._read(source)]
        for sample in samples:
            family = families.setdefault(sample.metric, _family(sample.metric))
            family.add_metric(sample.labels, sample.value)
        yield from families.values()

    def describe(self) -> list[Family]:
        """Return nothing: registering reads no place."""
        return []

    def _read(self, source: Place) -> list[MetricSample]:
        try:
            samples = source.samples()
        except (UsageError, RunError, OSError) as error:
            if source.name not in self._down:
                self._down.add(source.name)
                self._say(f"{source.name} cannot be read: {first_line(error)}")
            return [MetricSample(UP, (source.name,), 0)]
        self._down.discard(source.name)
        return [*samples, MetricSample(UP, (source.name,), 1)]


def registry_of(sources: Sequence[Place], say: Callable[[str], None]) -> CollectorRegistry:
    """Return a registry for Prometheus' client; arguments as of `PlaceCollector`."""
    registry = CollectorRegistry()
    registry.register(PlaceCollector(sources, say))
    return registry


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)


def only_for_loopback(application: Any, port: int, host: str) -> Any:
    """Return a WSGI application that refuses requests whose ``Host`` is not this server's.

    A page of another site could else read the numbers by a name that it points here (DNS rebinding).

    Args:
        application: WSGI application of the numbers.
        port: port of the server.
        host: loopback address that it listens on.
    """

    def guarded(environment: dict[str, Any], start_response: Any) -> Any:
        if names_loopback(environment.get("HTTP_HOST", ""), port, host):
            return application(environment, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"Misdirected Request\n"]

    return guarded
