"""Take-downs of a dataset, which match later records by source, by key, or by time within a source."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from reelweave.curate.ledger.records import Record
from reelweave.loader.dataset import Removal, RemovedSpan
from reelweave.loader.dataset.manifest import REMOVAL_STAGE
from reelweave.loader.storage.names import undigested_name

STAGE = REMOVAL_STAGE

_TOUCHING_S = 1e-3
"""Overlap below which spans only touch each other."""


@dataclass(frozen=True)
class TakeDowns:
    """All permanent take-downs of a dataset.

    Attributes:
        removals: Take-downs in the order of their requests.
    """

    removals: tuple[Removal, ...] = ()

    def of_older_names(self, uris: Iterable[str]) -> "TakeDowns":
        """Return take-downs that also hold for sources to which an earlier version gave the name of a removed one.

        That version left parameters out of names which now have a digest, see `reelweave.loader.storage.public_url`.
        """
        older = ((uri, self.sources.get(undigested_name(uri))) for uri in uris if uri not in self.sources)
        more = (removal.model_copy(update={"source": uri}) for uri, removal in older if removal is not None)
        return TakeDowns((*self.removals, *more))

    @cached_property
    def sources(self) -> dict[str, Removal]:
        """Take-downs of whole sources, by URI."""
        return {removal.source: removal for removal in self.removals if removal.source is not None}

    @cached_property
    def keys(self) -> dict[str, Removal]:
        """Take-downs of single samples, by key."""
        return {removal.key: removal for removal in self.removals if removal.key}

    @cached_property
    def _spans(self) -> dict[str, list[Removal]]:
        spans = defaultdict(list)
        for removal in self.keys.values():
            if removal.span is not None:
                for name in (removal.span.source, removal.span.source_sha256):
                    spans[name].append(removal)
        spans.pop("", None)
        return spans

    @property
    def named(self) -> frozenset[str]:
        """URIs, keys and digests of sources: a record that has none of them was not taken down."""
        return frozenset((*self.sources, *self.keys, *self._spans))

    def of(self, record: Record) -> Removal | None:
        """Return the take-down of a record: by its source, its key, or a span that overlaps it."""
        match = self.sources.get(record.source) or self.keys.get(record.key or "")
        if match is not None or record.start_s is None or record.end_s is None:
            return match
        span_removals: list[Removal] = []
        for name in (record.source, record.source_sha256):
            span_removals += self._spans.get(name, [])
        for removal in span_removals:
            if removal.span and overlap(removal.span, record.start_s, record.end_s):
                return removal
        return None


def overlap(span: RemovedSpan, start_s: float, end_s: float) -> bool:
    """Return whether a removed span shares seconds of its source with another span."""
    return min(span.end_s, end_s) - max(span.start_s, start_s) > _TOUCHING_S


def take_down_reason(removal: Removal) -> str:
    """Return the reason for the accounting."""
    return removal.words


def empty_record(record: Record, removal: Removal) -> Record:
    """Return the part of a taken-down record that is kept: its place in the source, and the reason."""
    return Record(
        source=record.source,
        part=record.part,
        parts=record.parts,
        start_s=record.start_s,
        end_s=record.end_s,
        key=record.key,
        source_sha256=record.source_sha256,
        segment=record.segment,
        state="filtered",
        stage=STAGE,
        reason=take_down_reason(removal),
    )
