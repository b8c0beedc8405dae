"""Numbers of a curation, from the status that it keeps in its dataset."""

from reelweave.loader.storage import Storage
from reelweave.pipelines.metrics.curation_status import is_finished, read_status
from reelweave.pipelines.metrics.sample import Metric, MetricSample

_DATASET = ("dataset",)
FINISHED = Metric(
    "reelweave_curation_finished", "1 where the dataset is published and no run changes it, else 0.", _DATASET
)
DONE = Metric(
    "reelweave_curation_done",
    "Sources (phases scores, cut), clips (caption) or shards (shard) done.",
    ("dataset", "phase"),
)
ASKED = Metric("reelweave_curation_planned", "Sources, clips or shards of the phase.", ("dataset", "phase"))
SHARE = Metric(
    "reelweave_curation_done_ratio", "Share of the phase's work, by pixels times duration.", _DATASET
)
LEFT = Metric("reelweave_curation_left_seconds", "Estimated seconds to the end of the phase.", _DATASET)
RECORDS = Metric("reelweave_curation_records", "Clips and sources by state so far.", ("dataset", "state"))
SOURCES = Metric(
    "reelweave_sources",
    "Sources that were finished: failed whole (state failed), or not (done).",
    ("dataset", "state"),
    True,
)
RETRIES = Metric(
    "reelweave_curation_retries",
    "Requests to storage that a run's passes over sources sent again.",
    _DATASET,
    True,
)
LONGEST = Metric(
    "reelweave_curation_longest_source_seconds", "Seconds in work of the source longest in work.", _DATASET
)
NOTED = Metric("reelweave_curation_noted_timestamp_seconds", "Time of the status.", _DATASET)
CURATION = (FINISHED, DONE, ASKED, SHARE, LEFT, RECORDS, SOURCES, RETRIES, LONGEST, NOTED)


class Curation:
    """A curation at work, or what it has finished.

    Args:
        storage: place of the dataset.
        name: its name in labels.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._storage = storage

    def samples(self) -> list[MetricSample]:
        """Return the numbers of the newest status."""
        status, labels = read_status(self._storage), (self.name,)
        samples = [MetricSample(FINISHED, labels, float(is_finished(self._storage, status)))]
        if status is None:
            return samples
        samples += [
            MetricSample(DONE, (self.name, status.phase), status.done),
            MetricSample(ASKED, (self.name, status.phase), status.total),
            MetricSample(RETRIES, labels, status.retries),
            MetricSample(LONGEST, labels, max((seconds for _, _, seconds in status.at_work), default=0.0)),
        ]
        if status.total_weight > 0:
            samples.append(MetricSample(SHARE, labels, status.done_weight / status.total_weight))
        if status.eta_s is not None:
            samples.append(MetricSample(LEFT, labels, status.eta_s))
        if status.at is not None:
            samples.append(MetricSample(NOTED, labels, status.at.timestamp()))
        samples += [
            MetricSample(RECORDS, (self.name, state), count) for state, count in status.states.items()
        ]
        return samples + [
            MetricSample(SOURCES, (self.name, state), count) for state, count in status.sources.items()
        ]
