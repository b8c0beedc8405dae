"""Deduplication, exact, perceptual and semantic: pure functions over columns, without access to clips."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from curate.dedup.clusters import clusters
from curate.dedup.fingerprint import PICTURES_PER_S, fingerprint, match
from curate.dedup.neighbours import near_pairs, near_references
from curate.dedup.products import Floats, Places
from curate.dedup.types import (
    DedupClips,
    DedupConfig,
    Duplicate,
    PerceptualConfig,
    SemanticConfig,
    Vectors,
)
from curate.models.device import Device

__all__ = [
    "DedupClips",
    "DedupConfig",
    "Duplicate",
    "Vectors",
    "contaminated",
    "dedup",
    "fingerprint",
]

Compare = Callable[[int, int, float], Duplicate | None]

_NEIGHBOURS = 32
"""Maximum number of candidates per clip: thousands of clips of one camera would otherwise cost their square."""


def dedup(clips: DedupClips, config: DedupConfig) -> dict[str, Duplicate]:
    """Find the duplicates among clips, by key; the order of the clips does not matter.

    The best clip of each group is kept. Every duplicate directly matches the kept clip: similarity is not
    transitive.

    Args:
        clips: Clips to deduplicate; old ones are never dropped, and preferred to new ones.
        config: Kinds of duplicates and their thresholds.
    """
    found: dict[int, Duplicate] = {}
    order = clips.order()
    if config.exact.enabled:
        found |= _exact(clips, order)
    if config.perceptual.enabled:
        found |= _perceptual(clips, _without(order, found), config)
    if config.semantic.enabled:
        found |= _semantic(clips, _without(order, found), config)
    by_key = {clips.keys[row].as_py(): duplicate for row, duplicate in found.items()}
    return {key: _followed(duplicate, by_key) for key, duplicate in by_key.items()}


def contaminated(clips: DedupClips, evaluation: DedupClips, config: DedupConfig) -> dict[str, Duplicate]:
    """Find the clips that are also in an evaluation set, by key; duplicates among the clips do not count."""
    found: dict[int, Duplicate] = {}
    order, every = evaluation.order(), np.arange(len(clips))
    if config.exact.enabled:
        places = pc.index_in(clips.sha256, value_set=evaluation.sha256.take(order))
        same = pc.fill_null(places, -1).to_numpy()
        found |= {
            row: _same_bytes(evaluation, int(order[same[row]])) for row in np.flatnonzero(same >= 0).tolist()
        }
    for enabled, vectors, others, least, compare in (
        (
            config.perceptual.enabled,
            clips.footage,
            evaluation.footage,
            config.perceptual.candidate_similarity,
            _footage(evaluation, clips, config.perceptual),
        ),
        (
            config.semantic.enabled,
            clips.embedding,
            evaluation.embedding,
            config.semantic.min_similarity,
            _kind(evaluation, config.semantic),
        ),
    ):
        ours, theirs = _with(vectors, _without(every, found)), _with(others, order)
        if enabled and len(ours) and len(theirs):
            pairs = near_references(
                vectors.read(ours), others.read(theirs), least, _NEIGHBOURS, config.device
            )
            found |= _best(((int(theirs[at]), int(ours[one]), cosine) for at, one, cosine in pairs), compare)
    return {clips.keys[row].as_py(): duplicate for row, duplicate in found.items()}


def _without(rows: Places, found: Mapping[int, Duplicate]) -> Places:
    """Return the rows that are no duplicate so far, in order."""
    return rows[~np.isin(rows, list(found))] if found else rows


def _with(vectors: Vectors, rows: Places) -> Places:
    """Return the rows that have a vector, in order."""
    return rows[vectors.there[rows]]


def _followed(duplicate: Duplicate, found: Mapping[str, Duplicate]) -> Duplicate:
    """Point a duplicate at the finally kept clip: a later kind may have dropped the clip it names."""
    while duplicate.of in found:
        duplicate = replace(duplicate, of=found[duplicate.of].of)
    return duplicate


def _exact(clips: DedupClips, rows: Places) -> dict[int, Duplicate]:
    codes = clips.sha256.dictionary_encode().indices.to_numpy()[rows]
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    kept = rows[first[which]]
    later = (kept != rows) & ~clips.old[rows]
    return {
        row: _same_bytes(clips, one)
        for row, one in zip(rows[later].tolist(), kept[later].tolist(), strict=True)
    }


def _perceptual(clips: DedupClips, rows: Places, config: DedupConfig) -> dict[int, Duplicate]:
    seen = _with(clips.footage, rows)
    if not len(seen):
        return {}
    pairs = _pairs(
        clips, seen, clips.footage.read(seen), config.perceptual.candidate_similarity, config.device
    )
    return _stars(pairs, _footage(clips, clips, config.perceptual))


def _semantic(clips: DedupClips, rows: Places, config: DedupConfig) -> dict[int, Duplicate]:
    seen = _with(clips.embedding, rows)
    if not len(seen):
        return {}
    semantic, vectors = config.semantic, clips.embedding.read(seen)
    by_key = pc.sort_indices(clips.keys.take(seen)).to_numpy()
    nearest = np.empty(len(seen), np.intp)
    nearest[by_key] = clusters(vectors[by_key], semantic.cluster_size, semantic.iterations, config.device)
    found: dict[int, Duplicate] = {}
    for members in _members(nearest):
        pairs = _pairs(clips, seen[members], vectors[members], semantic.min_similarity, config.device)
        found |= _stars(pairs, _kind(clips, semantic))
    return found


def _same_bytes(clips: DedupClips, kept: int) -> Duplicate:
    key, source = clips.keys[kept].as_py(), clips.sources[kept].as_py()
    return Duplicate(key, "exact", 1.0, 1.0, f"the same bytes as {key} from {source}")


def _footage(kept_of: DedupClips, clips: DedupClips, config: PerceptualConfig) -> Compare:
    def compare(kept: int, row: int, _: float) -> Duplicate | None:
        one, other = kept_of.fingerprint(kept), clips.fingerprint(row)
        if one is None or other is None:
            return None
        least = max(2, math.ceil(config.min_overlap * len(other)))
        if min(len(one), len(other)) < least:
            return None
        best = match(one, other, least)
        if best.agreement < config.min_agreement:
            return None
        key, source = kept_of.keys[kept].as_py(), kept_of.sources[kept].as_py()
        reason = f"shows {best.shared / PICTURES_PER_S:.1f} s of the footage of {key} from {source}"
        return Duplicate(key, "perceptual", best.agreement, config.min_agreement, reason)

    return compare


def _kind(kept_of: DedupClips, config: SemanticConfig) -> Compare:
    def compare(kept: int, _: int, cosine: float) -> Duplicate:
        key, source = kept_of.keys[kept].as_py(), kept_of.sources[kept].as_py()
        reason = f"shows the same kind of thing as {key} from {source}"
        return Duplicate(key, "semantic", cosine, config.min_similarity, reason)

    return compare


def _members(nearest: Places) -> list[Places]:
    """Return the rising indices of each cluster's items."""
    order = np.argsort(nearest, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(nearest[order])) + 1)


def _pairs(
    clips: DedupClips, rows: Places, vectors: Floats, least: float, device: Device
) -> Iterator[tuple[int, int, float]]:
    """Yield (earlier, later, cosine) of similar rows of which the later one may be dropped."""
    for earlier, later, cosine in near_pairs(vectors, least, _NEIGHBOURS, device):
        if not clips.old[rows[later]]:
            yield int(rows[earlier]), int(rows[later]), cosine


def _stars(pairs: Iterable[tuple[int, int, float]], compare: Compare) -> dict[int, Duplicate]:
    """Return each later clip that ``compare`` matches with an earlier, kept one, by its best match.

    Args:
        pairs: Triples (earlier, later, cosine), grouped by the later clip.
        compare: Comparison of two clips; returns None for no match.
    """
    found: dict[int, Duplicate] = {}
    for _, group in itertools.groupby(pairs, key=lambda pair: pair[1]):
        found |= _best((pair for pair in group if pair[0] not in found), compare)
    return found


def _best(pairs: Iterable[tuple[int, int, float]], compare: Compare) -> dict[int, Duplicate]:
    """Return the best match of each later clip, of pairs as in `_stars`."""
    found: dict[int, Duplicate] = {}
    for earlier, later, cosine in pairs:
        twin = compare(earlier, later, cosine)
        if twin is not None:
            found[later] = max(found.get(later, twin), twin, key=lambda one: (one.score, one.of))
    return found
