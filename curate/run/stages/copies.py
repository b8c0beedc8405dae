"""Choice among copies: clips of the same span of the same bytes, whose sources have several names."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.caption.config import CaptionConfig
from reelweave.curate.caption.written import find_written
from reelweave.curate.dedup import Duplicate
from reelweave.curate.run.tables.columns import Rows, column
from reelweave.curate.run.tables.compare import copies_among
from reelweave.curate.run.tables.kept import KeptClips
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import ObjectError
from reelweave.loader.storage import StorageConfig, open_object
from reelweave.loader.text import pluralize


class Copies:
    """Choice of the copy that is kept: of the published source, else with a caption by people, else with attributes.

    Args:
        listed: All sources; clips name them by their index here.
        captions: Which captions by people count.
        storage: Where sidecars are read.
        dataset: The present revision; None where nothing is published.

    Attributes:
        notes: Sentences on what the last choice lost.
    """

    def __init__(
        self,
        listed: Sequence[SourceRef],
        captions: CaptionConfig,
        storage: StorageConfig,
        dataset: Dataset | None,
    ) -> None:
        self.notes: tuple[str, ...] = ()
        self._listed, self._captions, self._storage, self._dataset = listed, captions, storage, dataset
        self._unused = captions.model is not None and captions.overwrite_written
        self._texts: dict[tuple[int, int | None], str | None] = {}

    def among(self, clips: KeptClips, tables: Partitions) -> Rows:
        """Return the place of the copy that is kept, for each clip that has one; -1 for the others and for that one.

        Args:
            clips: Kept clips of all partitions.
            tables: Tables of the partitions.
        """
        segments: dict[int, int | None] = {}

        def rank(rows: Rows) -> Rows:
            segments.update(zip(rows.tolist(), _segments(clips, tables, rows), strict=True))
            keys = clips.keys.take(pa.array(rows))
            published = self._find_published(keys)
            return np.array(
                [
                    self._rank(int(clips.sources[row]), segments[row], published.get(key))
                    for row, key in zip(rows.tolist(), keys.to_pylist(), strict=True)
                ],
                np.int64,
            )

        # Only rows that have a twin are ranked, since a rank may read a sidecar.
        twins = copies_among(clips.keys, rank)
        # Captions and attributes that only a dropped copy has are lost: say so.
        self._note(
            {
                (int(clips.sources[row]), int(clips.sources[twins[row]]))
                for row in np.flatnonzero(twins >= 0).tolist()
                if self._loses(
                    (int(clips.sources[row]), segments[row]),
                    (int(clips.sources[twins[row]]), segments[int(twins[row])]),
                )
            }
        )
        return twins

    def note_duplicates(
        self, clips: KeptClips, tables: Partitions, duplicates: Mapping[str, Duplicate]
    ) -> None:
        """Note duplicates with a caption by people of clips that have none, since no sample has it then.

        Args:
            clips: Clips that were compared.
            tables: Tables of the partitions.
            duplicates: Duplicates among them, by key.
        """
        if self._unused or not duplicates:
            return
        # Rows of both clips of each pair.
        kept_keys = [duplicate.of for duplicate in duplicates.values()]
        pairs = pa.table(
            {
                name: pc.index_in(pa.array(keys, pa.string()), value_set=clips.keys).cast(pa.int64())
                for name, keys in (("copy", list(duplicates)), ("kept", kept_keys))
            }
        ).drop_null()
        # Pairs of which only the dropped clip has a caption by people.
        written = [self._places(clips, tables, column(pairs, name).to_numpy()) for name in ("copy", "kept")]
        losses = [
            (copy[0], kept[0])
            for copy, kept in zip(*written, strict=True)
            if self._text(*copy) and self._text(*kept) == ""
        ]
        # The first pair stands for all.
        if losses:
            copy, kept = (self._listed[index].uri for index in min(losses))
            are = pluralize(
                len(losses),
                "clip with a caption that people wrote is a duplicate",
                "clips with a caption that people wrote are duplicates",
            )
            self.notes += (
                f"{are} of a clip without one, and no sample has it (the first is of {copy}, the kept one of {kept});"
                " accounting.parquet names the kept clip in duplicate_of",
            )

    def _places(self, clips: KeptClips, tables: Partitions, rows: Rows) -> list[tuple[int, int | None]]:
        """Return the source of each of some clips, and its segment there."""
        return list(zip(clips.sources[rows].tolist(), _segments(clips, tables, rows), strict=True))

    def _rank(self, index: int, segment: int | None, published: str | None) -> int:
        source = self._listed[index]
        return (
            4 * (source.uri != published)
            + 2 * (self._text(index, segment) == "")
            + (not source.attributes_of(segment))
        )

    def _find_published(self, keys: pa.Array) -> Mapping[str, str]:
        """Return the source under which the dataset holds each of some keys."""
        sources: dict[str, str] = {}
        for table in self._dataset.table_parts("index", ["key", "source"]) if self._dataset else ():
            rows = table.filter(pc.is_in(column(table, "key"), value_set=keys))
            sources.update(
                zip(column(rows, "key").to_pylist(), column(rows, "source").to_pylist(), strict=True)
            )
        return sources

    def _text(self, index: int, segment: int | None) -> str | None:
        """Return the caption that people wrote beside a source or in a list; None where a sidecar cannot be read."""
        if (index, segment) not in self._texts:
            self._texts[index, segment] = self._find_written(self._listed[index], segment)
        return self._texts[index, segment]

    def _find_written(self, source: SourceRef, segment: int | None) -> str | None:
        caption = source.caption_of(segment)
        if self._unused or not (caption or source.sidecars):
            return ""
        storage, name = open_object(source.uri, self._storage, source.listed_in)
        try:
            # Tags of the container are the same in all copies.
            return find_written(storage, name, caption, {}, self._captions).text
        except ObjectError:
            return None  # the stage of captions says so, if it gets this copy

    def _loses(self, copy: tuple[int, int | None], kept: tuple[int, int | None]) -> bool:
        """Return whether a copy has words or attributes that the one that is kept has not."""
        attributes = self._listed[kept[0]].attributes_of(kept[1])
        return self._text(*copy) not in ("", self._text(*kept)) or not (
            self._listed[copy[0]].attributes_of(copy[1]).items() <= attributes.items()
        )

    def _note(self, losses: set[tuple[int, int]]) -> None:
        self.notes = ()
        if losses:
            copy, kept = (self._listed[index].uri for index in min(losses))
            self.notes = (
                f"{pluralize(len(losses), 'copy of a film has', 'copies of films have')} another caption, licence or"
                f" other attribute than the copy that is kept, and no sample has it (the first: {copy}; kept:"
                f" {kept}); their rows in accounting.parquet say dedup.source",
            )


def _segments(clips: KeptClips, tables: Partitions, rows: Rows) -> list[int | None]:
    """Return the segment of each of some clips."""
    segments: dict[int, int | None] = {}
    partitions = clips.partitions_of(rows)
    for partition in np.unique(partitions).tolist():
        some = rows[partitions == partition]
        values = column(tables.read(partition), "segment").take(pa.array(clips.rows[some]))
        segments.update(zip(some.tolist(), values.to_pylist(), strict=True))
    return [segments[row] for row in rows.tolist()]
