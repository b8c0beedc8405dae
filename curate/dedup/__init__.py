"""Deduplication, exact, perceptual and semantic: pure functions over columns, without access to clips."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.dedup.balance import balance
from reelweave.curate.dedup.clusters import clusters
from reelweave.curate.dedup.fingerprint import Match, overlap
from reelweave.curate.dedup.neighbours import near_pairs, near_references
from reelweave.curate.dedup.products import IndexArray
from reelweave.curate.dedup.text_hashes import hashes, may_repeat
from reelweave.curate.dedup.types import (
    DedupClips,
    DedupConfig,
    Duplicate,
    ManyPairs,
    PerceptualConfig,
    SemanticConfig,
    Vectors,
)
from reelweave.curate.models.device import Device

__all__ = [
    "DedupClips",
    "DedupConfig",
    "Duplicate",
    "ManyPairs",
    "Vectors",
    "balance",
    "dedup",
    "find_contaminated",
]

Pair = tuple[int, int, float]
"""A kept clip's row, a later clip's row, and the cosine of their vectors."""

Compare = Callable[[Pair], Duplicate | None]
Twin = tuple[Pair, Duplicate | None]
"""A pair, and what its comparison found."""


class _Many(NamedTuple):
    """Comparison of at least so many pairs at once."""

    least: int
    compare: Callable[[Sequence[Pair]], Iterable[Twin]]


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
    duplicates: dict[int, Duplicate] = {}
    if config.exact.enabled:
        duplicates |= _exact(clips)
    if config.perceptual.enabled:
        duplicates |= _perceptual(clips, duplicates, config)
    if config.semantic.enabled:
        duplicates |= _semantic(clips, duplicates, config)
    by_key = {clips.keys[row].as_py(): duplicate for row, duplicate in duplicates.items()}
    return {key: _point_at_kept(duplicate, by_key) for key, duplicate in by_key.items()}


def find_contaminated(clips: DedupClips, evaluation: DedupClips, config: DedupConfig) -> dict[str, Duplicate]:
    """Find the clips that are also in an evaluation set, by key; duplicates among the clips do not count."""
    duplicates: dict[int, Duplicate] = {}
    order, all_rows = evaluation.order(), np.arange(len(clips))
    # The same bytes first: they need no vectors.
    if config.exact.enabled:
        reference_rows = pc.index_in(clips.sha256, value_set=evaluation.sha256.take(order))
        same = pc.fill_null(reference_rows, -1).to_numpy()
        duplicates |= {
            row: _same_bytes(evaluation, int(order[same[row]])) for row in np.flatnonzero(same >= 0).tolist()
        }
    # Each kind of vectors looks at what no kind before has found.
    for enabled, vectors, references, min_similarity, compare in (
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
        ours, theirs = _with(vectors, _without(all_rows, duplicates)), _with(references, order)
        if enabled and len(ours) and len(theirs):
            pairs = near_references(
                vectors.some(ours), references.some(theirs), min_similarity, _NEIGHBOURS, config.device
            )
            duplicates |= _best(
                (pair, compare(pair))
                for pair in ((int(theirs[at]), int(ours[row]), cosine) for at, row, cosine in pairs)
            )
    return {clips.keys[row].as_py(): duplicate for row, duplicate in duplicates.items()}


def _without(rows: IndexArray, duplicates: Mapping[int, Duplicate]) -> IndexArray:
    """Return the rows that are no duplicate so far, in order."""
    return rows[~np.isin(rows, list(duplicates))] if duplicates else rows


def _with(vectors: Vectors, rows: IndexArray) -> IndexArray:
    """Return the rows that have a vector, in order."""
    return rows[vectors.there[rows]]


def _rows_left(clips: DedupClips, vectors: Vectors, duplicates: Mapping[int, Duplicate]) -> IndexArray:
    """Return the rows that have a vector and are no duplicate so far, in the order of clips."""
    return clips.order(_without(np.flatnonzero(vectors.there), duplicates)).astype(np.int32)


def _point_at_kept(duplicate: Duplicate, duplicates: Mapping[str, Duplicate]) -> Duplicate:
    """Point a duplicate at the finally kept clip: a later kind may have dropped the clip it names."""
    while duplicate.of in duplicates:
        duplicate = replace(duplicate, of=duplicates[duplicate.of].of)
    return duplicate


def _exact(clips: DedupClips) -> dict[int, Duplicate]:
    rows = clips.order(np.flatnonzero(may_repeat(hashes(clips.sha256))))
    codes = clips.sha256.take(pa.array(rows)).dictionary_encode().indices.to_numpy()
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    originals = rows[first[which]]
    later = (originals != rows) & ~clips.old[rows]
    return {
        row: _same_bytes(clips, original)
        for row, original in zip(rows[later].tolist(), originals[later].tolist(), strict=True)
    }


def _perceptual(
    clips: DedupClips, duplicates: Mapping[int, Duplicate], config: DedupConfig
) -> dict[int, Duplicate]:
    candidates = _rows_left(clips, clips.footage, duplicates)
    if not len(candidates):
        return {}
    pairs = _pairs(clips, candidates, clips.footage, config.perceptual.candidate_similarity, config.device)
    return _stars(pairs, _footage(clips, clips, config.perceptual), _many_footage(clips, config.perceptual))


def _semantic(
    clips: DedupClips, earlier: Mapping[int, Duplicate], config: DedupConfig
) -> dict[int, Duplicate]:
    candidates = _rows_left(clips, clips.embedding, earlier)
    if not len(candidates):
        return {}
    semantic = config.semantic
    by_key = pc.sort_indices(clips.keys.take(candidates)).to_numpy()
    nearest = np.empty(len(candidates), np.intp)
    nearest[by_key] = clusters(
        clips.embedding.some(candidates[by_key]), semantic.cluster_size, semantic.iterations, config.device
    )
    duplicates: dict[int, Duplicate] = {}
    for members in _members(nearest):
        pairs = _pairs(clips, candidates[members], clips.embedding, semantic.min_similarity, config.device)
        duplicates |= _stars(pairs, _kind(clips, semantic))
    return duplicates


def _same_bytes(clips: DedupClips, original: int) -> Duplicate:
    key, source = clips.keys[original].as_py(), clips.sources[original].as_py()
    return Duplicate(key, "exact", 1.0, 1.0, f"the same bytes as {key} from {source}")


def _footage(kept_of: DedupClips, clips: DedupClips, config: PerceptualConfig) -> Compare:
    def compare(pair: Pair) -> Duplicate | None:
        original, row, _ = pair
        best = overlap(kept_of.fingerprint(original), clips.fingerprint(row), config.min_overlap)
        return _same_footage(kept_of, original, best, config)

    return compare


def _many_footage(clips: DedupClips, config: PerceptualConfig) -> _Many | None:
    """Return the comparison of many pairs at once, where there is one."""
    many = clips.many
    if many is None:
        return None

    def compare(pairs: Sequence[Pair]) -> Iterator[Twin]:
        matches = many.match([(original, row) for original, row, _ in pairs], config.min_overlap)
        for pair, best in zip(pairs, matches, strict=True):
            yield pair, _same_footage(clips, pair[0], best, config)

    return _Many(many.least, compare)


def _same_footage(
    kept_of: DedupClips, original: int, best: Match | None, config: PerceptualConfig
) -> Duplicate | None:
    if best is None or best.agreement < config.min_agreement:
        return None
    key, source = kept_of.keys[original].as_py(), kept_of.sources[original].as_py()
    reason = f"the footage of {key} from {source}"
    return Duplicate(key, "perceptual", best.agreement, config.min_agreement, reason, best.shared_s)


def _kind(kept_of: DedupClips, config: SemanticConfig) -> Compare:
    def compare(pair: Pair) -> Duplicate:
        original, _, cosine = pair
        key, source = kept_of.keys[original].as_py(), kept_of.sources[original].as_py()
        reason = f"shows the same kind of thing as {key} from {source}"
        return Duplicate(key, "semantic", cosine, config.min_similarity, reason)

    return compare


def _members(nearest: IndexArray) -> Sequence[IndexArray]:
    """Return the rising indices of each cluster's items."""
    order = np.argsort(nearest, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(nearest[order])) + 1)


def _pairs(
    clips: DedupClips, rows: IndexArray, vectors: Vectors, min_similarity: float, device: Device
) -> Iterator[Pair]:
    """Yield (earlier, later, cosine) of similar rows of which the later one may be dropped."""
    for earlier, later, cosine in near_pairs(vectors.some(rows), min_similarity, _NEIGHBOURS, device):
        if not clips.old[rows[later]]:
            yield int(rows[earlier]), int(rows[later]), cosine


def _stars(pairs: Iterable[Pair], compare: Compare, many: _Many | None = None) -> dict[int, Duplicate]:
    """Return each later clip that ``compare`` matches with an earlier, kept one, by its best match.

    Args:
        pairs: Pairs, grouped by the later clip, in an order in which a clip's own group precedes its pairs as the
            earlier one.
        compare: Comparison of two clips; returns None for no match.
        many: The same comparison of many pairs at once.
    """
    duplicates: dict[int, Duplicate] = {}
    for groups in _batches(pairs, many.least if many else 1):
        count = sum(map(len, groups))
        if many and count >= many.least:
            open_pairs = [pair for group in groups for pair in group if pair[0] not in duplicates]
            twins = itertools.groupby(many.compare(open_pairs), key=lambda twin: twin[0][1])
            for _, group in twins:
                duplicates |= _best(twin for twin in group if twin[0][0] not in duplicates)
        else:
            for pairs_of in groups:
                duplicates |= _best((pair, compare(pair)) for pair in pairs_of if pair[0] not in duplicates)
    return duplicates


def _batches(pairs: Iterable[Pair], min_pairs: int) -> Iterator[list[list[Pair]]]:
    """Yield the pairs of whole later clips, together at least so many; the last ones may be fewer."""
    batch: list[list[Pair]] = []
    count = 0
    for _, group in itertools.groupby(pairs, key=lambda pair: pair[1]):
        batch.append(list(group))
        count += len(batch[-1])
        if count >= min_pairs:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch


def _best(twins: Iterable[Twin]) -> dict[int, Duplicate]:
    """Return the best match of each later clip."""
    best_twins: dict[int, Duplicate] = {}
    for (_, later, _), twin in twins:
        if twin is not None:
            best_twins[later] = max(
                best_twins.get(later, twin), twin, key=lambda candidate: (candidate.score, candidate.of)
            )
    return best_twins
