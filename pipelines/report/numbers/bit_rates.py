"""Bit rates of kept clips: their sizes over their durations."""

from dataclasses import dataclass

import numpy as np

from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.manifest import Totals
from reelweave.loader.dataset.tars.members import media_members

_EDGES_MBPS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


@dataclass(frozen=True)
class BitRates:
    """Bit rates of kept clips with their sound, megabits per second.

    Attributes:
        mean: bits of all clips over their seconds; None without clips.
        largest: rate of the clip with the most bits a second.
        edges: edges of bins, each of which holds its lower edge.
        counts: number of clips in each bin.
    """

    mean: float | None
    largest: float | None
    edges: list[float]
    counts: list[int]


def mean_mbps(totals: Totals) -> float | None:
    """Return the bits of all clips over their seconds, megabits per second; None without clips."""
    return 8e-6 * totals.clip_bytes / totals.duration_s if totals.duration_s else None


def bit_rates(dataset: Dataset) -> BitRates:
    """Return the bit rates of a dataset's clips, of which sizes and durations are read by parts."""
    counts, largest = np.zeros(len(_EDGES_MBPS), np.int64), 0.0
    for table in dataset.table_parts("index", ["shard", "members", "duration_s"]):
        clip_files = media_members(table)
        rows = clip_files.rows()
        seconds_n = table.column("duration_s").to_numpy()[rows]
        timed = seconds_n > 0
        mbps_n = 8e-6 * clip_files.size[rows][timed] / seconds_n[timed]
        counts += np.histogram(mbps_n, [*_EDGES_MBPS, np.inf])[0]
        largest = max(largest, float(mbps_n.max(initial=0.0)))
    filled = np.flatnonzero(counts)
    if not len(filled):
        return BitRates(None, None, [], [])
    # The ladder as far as clips reach; the last bin ends with the largest rate.
    first, last = int(filled[0]), int(filled[-1])
    edges = [*_EDGES_MBPS, float(np.nextafter(largest, np.inf))]
    return BitRates(
        mean_mbps(dataset.manifest.totals),
        largest,
        edges[first : last + 2],
        counts[first : last + 1].tolist(),
    )
