"""Concept balance: at most so many clips of each cluster of an embedding."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.dedup.clusters import clusters
from reelweave.curate.dedup.types import BalanceConfig, DedupClips, Surplus
from reelweave.curate.models.device import Device


class Balance(NamedTuple):
    """Clips beyond the cap of their concept.

    Attributes:
        surplus: New ones, by key, which are dropped.
        old_beyond: Number of old ones, which stay.
    """

    surplus: dict[str, Surplus]
    old_beyond: int


def balance(
    clips: DedupClips, duplicates: Collection[str], config: BalanceConfig, device: Device = "cpu"
) -> Balance:
    """Return the clips beyond the cap of their concept; the order of the clips does not matter.

    Concepts are clusters of the embedding by spherical k-means. Of a cluster the best clips are kept, as
    `DedupClips.order` sorts them. Old clips are never dropped, and count first. Clips without an embedding have no
    concept.

    Args:
        clips: Clips as they were deduplicated.
        duplicates: Keys of those that were dropped, which fill no concept.
        config: Number of concepts, and their cap.
        device: Device of k-means, as in `reelweave.curate.dedup.neighbours.near_pairs`.
    """
    dropped = pc.is_in(clips.keys, value_set=pa.array(list(duplicates), pa.string()))
    rows = np.flatnonzero(clips.embedding.there & ~dropped.to_numpy(zero_copy_only=False))
    if config.max_clips is None or len(rows) <= config.max_clips:
        return Balance({}, 0)
    # By key, so that the first centres do not depend on the order of the work.
    rows = rows[pc.sort_indices(clips.keys.take(pa.array(rows))).to_numpy()]
    size = max(1, round(len(rows) / config.concepts))
    concept = np.full(len(clips), -1, np.intp)
    concept[rows] = clusters(clips.embedding.some(rows.astype(np.int32)), size, config.iterations, device)
    order = clips.order(rows)
    by_concept = order[np.argsort(concept[order], kind="stable")]
    counts = np.bincount(concept[rows])
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(by_concept)) - starts[concept[by_concept]]
    is_beyond, is_old = rank >= config.max_clips, clips.old[by_concept]
    surplus = by_concept[is_beyond & ~is_old]
    old_counts = np.bincount(concept[rows[clips.old[rows]]], minlength=len(counts))
    num_concepts = int(np.count_nonzero(counts))
    keys, concepts = clips.keys.take(pa.array(surplus)).to_pylist(), concept[surplus].tolist()
    findings = {
        key: Surplus(index, int(counts[index]), int(old_counts[index]), num_concepts, config.max_clips)
        for key, index in zip(keys, concepts, strict=True)
    }
    return Balance(findings, int((is_beyond & is_old).sum()))
