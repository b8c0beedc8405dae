"""Deduplication, exact, perceptual and semantic: pure functions over items, without access to clips."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.dedup.clusters import clusters
from curate.dedup.fingerprint import PICTURES_PER_S, fingerprint, match
from curate.dedup.neighbours import Floats, Places, near_pairs, near_references
from curate.dedup.types import DedupConfig, DedupItem, Duplicate, PerceptualConfig, SemanticConfig
from curate.models.device import Device

__all__ = ["DedupConfig", "DedupItem", "Duplicate", "contaminated", "dedup", "fingerprint", "quality"]

Vector = NDArray[Any]
Compare = Callable[[DedupItem, DedupItem, float], Duplicate | None]

_NEIGHBOURS = 32
"""Maximum number of candidates per clip: thousands of clips of one camera would otherwise cost their square."""


def quality(
    scores: Mapping[str, float], width: int, height: int, clip_bytes: int, duration_s: float
) -> tuple[float, ...]:
    """Return the quality of a clip, by falling priority: pixels, aesthetic score, length, bits per second."""
    bits = clip_bytes / max(duration_s, 1e-6)
    return (float(width * height), scores.get("aesthetic", 0.0), round(duration_s, 1), round(bits))


def dedup(
    items: Sequence[DedupItem], config: DedupConfig, older: Sequence[DedupItem] = ()
) -> dict[str, Duplicate]:
    """Find the duplicates among items, by key; the order of the items does not matter.

    The best item of each group is kept. Every duplicate directly matches the kept item: similarity is not
    transitive.

    Args:
        items: Items to deduplicate.
        config: Kinds of duplicates and their thresholds.
        older: Items of the existing dataset; never dropped, and preferred to new ones.
    """
    found: dict[str, Duplicate] = {}
    ordered = sorted(older, key=_order) + sorted(items, key=_order)
    old = {item.key for item in older}
    for enabled, find in (
        (config.exact.enabled, _exact),
        (config.perceptual.enabled, lambda left, old: _perceptual(left, old, config)),
        (config.semantic.enabled, lambda left, old: _semantic(left, old, config)),
    ):
        if enabled:
            found.update(find([item for item in ordered if item.key not in found], old))
    return {key: _followed(duplicate, found) for key, duplicate in found.items()}


def contaminated(
    items: Sequence[DedupItem], evaluation: Sequence[DedupItem], config: DedupConfig
) -> dict[str, Duplicate]:
    """Find the items that are also in an evaluation set, by key; duplicates among the items do not count."""
    found: dict[str, Duplicate] = {}
    theirs = {item.sha256: item for item in sorted(evaluation, key=_order, reverse=True)}
    if config.exact.enabled:
        found |= {item.key: _same_bytes(theirs[item.sha256]) for item in items if item.sha256 in theirs}
    for enabled, vector_of, least, compare in (
        (
            config.perceptual.enabled,
            _footage_vector,
            config.perceptual.candidate_similarity,
            _footage(config.perceptual),
        ),
        (config.semantic.enabled, _embedding, config.semantic.min_similarity, _kind(config.semantic)),
    ):
        ours, vectors = _with_vectors([item for item in items if item.key not in found], vector_of)
        others, others_vectors = _with_vectors(sorted(evaluation, key=_order), vector_of)
        if enabled and ours and others:
            pairs = near_references(vectors, others_vectors, least, _NEIGHBOURS, config.device)
            found |= _stars(((others[at], ours[one], cosine) for at, one, cosine in pairs), compare)
    return found


def _order(item: DedupItem) -> tuple[tuple[float, ...], str]:
    return tuple(-value for value in item.quality), item.key


def _followed(duplicate: Duplicate, found: Mapping[str, Duplicate]) -> Duplicate:
    """Point a duplicate at the finally kept clip: a later kind may have dropped the clip it names."""
    while duplicate.of in found:
        duplicate = replace(duplicate, of=found[duplicate.of].of)
    return duplicate


def _exact(items: Sequence[DedupItem], old: set[str]) -> dict[str, Duplicate]:
    first: dict[str, DedupItem] = {}
    found = {}
    for item in items:
        kept = first.setdefault(item.sha256, item)
        if kept is not item and item.key not in old:
            found[item.key] = _same_bytes(kept)
    return found


def _perceptual(items: Sequence[DedupItem], old: set[str], config: DedupConfig) -> dict[str, Duplicate]:
    seen, vectors = _with_vectors(items, _footage_vector)
    least = config.perceptual.candidate_similarity
    return _stars(_pairs(seen, vectors, old, least, config.device), _footage(config.perceptual))


def _semantic(items: Sequence[DedupItem], old: set[str], config: DedupConfig) -> dict[str, Duplicate]:
    seen, vectors = _with_vectors(items, _embedding)
    if not seen:
        return {}
    semantic = config.semantic
    by_key = np.argsort([item.key for item in seen], kind="stable")
    nearest = np.empty(len(seen), np.intp)
    nearest[by_key] = clusters(vectors[by_key], semantic.cluster_size, semantic.iterations, config.device)
    found: dict[str, Duplicate] = {}
    for members in _members(nearest):
        part = [seen[number] for number in members]
        pairs = _pairs(part, vectors[members], old, semantic.min_similarity, config.device)
        found |= _stars(pairs, _kind(semantic))
    return found


def _same_bytes(kept: DedupItem) -> Duplicate:
    return Duplicate(kept.key, "exact", 1.0, 1.0, f"the same bytes as {kept.key} from {kept.source}")


def _footage(config: PerceptualConfig) -> Compare:
    def compare(kept: DedupItem, item: DedupItem, _: float) -> Duplicate | None:
        one = kept.fingerprint and kept.fingerprint()
        other = item.fingerprint and item.fingerprint()
        if one is None or other is None:
            return None
        least = max(2, math.ceil(config.min_overlap * len(other)))
        if min(len(one), len(other)) < least:
            return None
        best = match(one, other, least)
        if best.agreement < config.min_agreement:
            return None
        reason = f"shows {best.shared / PICTURES_PER_S:.1f} s of the footage of {kept.key} from {kept.source}"
        return Duplicate(kept.key, "perceptual", best.agreement, config.min_agreement, reason)

    return compare


def _kind(config: SemanticConfig) -> Compare:
    def compare(kept: DedupItem, _: DedupItem, cosine: float) -> Duplicate:
        reason = f"shows the same kind of thing as {kept.key} from {kept.source}"
        return Duplicate(kept.key, "semantic", cosine, config.min_similarity, reason)

    return compare


def _footage_vector(item: DedupItem) -> Vector | None:
    return None if item.fingerprint is None else item.global_embedding


def _embedding(item: DedupItem) -> Vector | None:
    return item.embedding


def _with_vectors(
    items: Sequence[DedupItem], vector_of: Callable[[DedupItem], Vector | None]
) -> tuple[list[DedupItem], Floats]:
    """Return the items that have the vector, and the vectors, float32 [n, D]."""
    seen = [(item, vector) for item in items if (vector := vector_of(item)) is not None]
    vectors = [np.asarray(vector, np.float32) for _, vector in seen]
    return [item for item, _ in seen], np.stack(vectors) if vectors else np.zeros((0, 1), np.float32)


def _members(nearest: Places) -> list[Places]:
    """Return the rising indices of each cluster's items."""
    order = np.argsort(nearest, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(nearest[order])) + 1)


def _pairs(
    items: Sequence[DedupItem], vectors: Floats, old: set[str], least: float, device: Device
) -> Iterator[tuple[DedupItem, DedupItem, float]]:
    """Yield (earlier, later, cosine) of similar items of which the later one may be dropped."""
    for earlier, later, cosine in near_pairs(vectors, least, _NEIGHBOURS, device):
        if items[later].key not in old:
            yield items[earlier], items[later], cosine


def _stars(pairs: Iterable[tuple[DedupItem, DedupItem, float]], compare: Compare) -> dict[str, Duplicate]:
    """Return each later item that ``compare`` matches with an earlier, kept one, by its best match.

    Args:
        pairs: Triples (earlier, later, cosine), grouped by the later item.
        compare: Comparison of two items; returns None for no match.
    """
    found: dict[str, Duplicate] = {}
    for key, group in itertools.groupby(pairs, key=lambda pair: pair[1].key):
        matches = [
            compare(earlier, later, cosine) for earlier, later, cosine in group if earlier.key not in found
        ]
        sure = [one for one in matches if one is not None]
        if sure:
            found[key] = max(sure, key=lambda one: (one.score, one.of))
    return found
