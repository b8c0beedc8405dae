"""Deduplication: exact, perceptual and semantic, as pure functions over items; nothing here reads a clip."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from curate.dedup.fingerprint import PICTURES_PER_S, fingerprint, match
from curate.dedup.semantic import clusters, near_pairs
from curate.dedup.types import DedupConfig, Duplicate, Item, PerceptualConfig, SemanticConfig

__all__ = ["DedupConfig", "Duplicate", "Item", "contaminated", "dedup", "fingerprint", "quality"]

_NEIGHBOURS = 32
"""Candidates compared closely with one clip at most: thousands of one camera would otherwise cost their square."""


def quality(
    scores: Mapping[str, float], width: int, height: int, clip_bytes: int, duration_s: float
) -> tuple[float, ...]:
    """What is better in a clip, most important first: pixels, aesthetic score, length, bits spent on a second."""
    bits = clip_bytes / max(duration_s, 1e-6)
    return (float(width * height), scores.get("aesthetic", 0.0), round(duration_s, 1), round(bits))


def dedup(items: Sequence[Item], config: DedupConfig, older: Sequence[Item] = ()) -> dict[str, Duplicate]:
    """What of the items is a duplicate, by key; the same in whatever order the items come.

    The best of each group is kept, and every duplicate matches the very clip it is called a duplicate of:
    likeness is not passed on from clip to clip.

    Args:
        items: to be deduplicated.
        config: what counts.
        older: of the dataset already there; never dropped, and preferred to new ones.
    """
    found: dict[str, Duplicate] = {}
    ordered = sorted(older, key=_order) + sorted(items, key=_order)
    old = {item.key for item in older}
    for enabled, find in (
        (config.exact.enabled, _exact),
        (config.perceptual.enabled, lambda left, old: _perceptual(left, old, config.perceptual)),
        (config.semantic.enabled, lambda left, old: _semantic(left, old, config.semantic)),
    ):
        if enabled:
            found.update(find([item for item in ordered if item.key not in found], old))
    return {key: _followed(duplicate, found) for key, duplicate in found.items()}


def contaminated(
    items: Sequence[Item], evaluation: Sequence[Item], config: DedupConfig
) -> dict[str, Duplicate]:
    """What of the items also lies in an evaluation set, by key; duplicates among the items do not count."""
    found: dict[str, Duplicate] = {}
    for item in sorted(items, key=_order):
        found.update(dedup([item], config, evaluation))
    return found


def _order(item: Item) -> tuple[tuple[float, ...], str]:
    return tuple(-value for value in item.quality), item.key


def _followed(duplicate: Duplicate, found: Mapping[str, Duplicate]) -> Duplicate:
    """The duplicate, of what is kept at last: a later kind may have dropped the clip it was named after."""
    while duplicate.of in found:
        duplicate = replace(duplicate, of=found[duplicate.of].of)
    return duplicate


def _exact(items: Sequence[Item], old: set[str]) -> dict[str, Duplicate]:
    first: dict[str, Item] = {}
    found = {}
    for item in items:
        kept = first.setdefault(item.sha256, item)
        if kept is not item and item.key not in old:
            reason = f"the same bytes as {kept.key} from {kept.source}"
            found[item.key] = Duplicate(kept.key, "exact", 1.0, 1.0, reason)
    return found


def _perceptual(items: Sequence[Item], old: set[str], config: PerceptualConfig) -> dict[str, Duplicate]:
    seen = [item for item in items if item.fingerprint is not None and item.global_embedding is not None]
    if len(seen) < 2:
        return {}
    vectors = np.stack([np.asarray(item.global_embedding, np.float32) for item in seen])

    def compare(kept: Item, item: Item, _: float) -> Duplicate | None:
        one, other = kept.fingerprint, item.fingerprint
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

    return _stars(seen, vectors, old, config.candidate_similarity, compare)


def _semantic(items: Sequence[Item], old: set[str], config: SemanticConfig) -> dict[str, Duplicate]:
    seen = [item for item in items if item.embedding is not None]
    if len(seen) < 2:
        return {}
    vectors = np.stack([np.asarray(item.embedding, np.float32) for item in seen])
    by_key = np.argsort([item.key for item in seen], kind="stable")
    nearest = np.empty(len(seen), np.intp)
    nearest[by_key] = clusters(vectors[by_key], config.cluster_size, config.iterations)

    def compare(kept: Item, _: Item, cosine: float) -> Duplicate:
        reason = f"shows the same kind of thing as {kept.key} from {kept.source}"
        return Duplicate(kept.key, "semantic", cosine, config.min_similarity, reason)

    found: dict[str, Duplicate] = {}
    for cluster in np.unique(nearest):
        members = np.flatnonzero(nearest == cluster)
        part = [seen[number] for number in members]
        found.update(_stars(part, vectors[members], old, config.min_similarity, compare))
    return found


def _stars(
    items: Sequence[Item],
    vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    old: set[str],
    least: float,
    compare: Callable[[Item, Item, float], Duplicate | None],
) -> dict[str, Duplicate]:
    """Each item that ``compare`` matches with an earlier, kept one; the surest match counts."""
    nearby: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for earlier, later, cosine in near_pairs(vectors, least, _NEIGHBOURS):
        nearby[later].append((earlier, cosine))
    found: dict[str, Duplicate] = {}
    for later in sorted(nearby):
        if items[later].key in old:
            continue
        matches = [
            compare(items[earlier], items[later], cosine)
            for earlier, cosine in nearby[later]
            if items[earlier].key not in found
        ]
        sure = [one for one in matches if one is not None]
        if sure:
            found[items[later].key] = max(sure, key=lambda one: (one.score, one.of))
    return found
