"""Table of further captions: variants by a model, and all captions of written lists; and what a run says of them."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.caption.types import CAPTIONS as STAGE
from reelweave.curate.caption.types import CONTRADICTED, VARIANTS
from reelweave.curate.run.tables.columns import column, equal, filter_rows, mask_of, repeat_value
from reelweave.curate.run.tables.judge import fill_maps, token_counts
from reelweave.loader.dataset.schema import CAPTIONS, WRITTEN
from reelweave.loader.text import MOST_TEXTS, pluralize


def captions_table(clips: pa.Table, results: Mapping[str, pa.Table]) -> pa.Table:
    """Return the further captions of kept clips.

    Args:
        clips: Clips in their final state.
        results: Results of stages by name, a row for each clip.
    """
    remaining = equal(clips, "state", "kept") & mask_of(pc.is_valid(column(clips, "key")))
    keys = column(clips, "key").filter(pa.array(remaining))
    of_kept = {
        name: filter_rows(table, remaining) for name, table in results.items() if name.startswith(STAGE)
    }
    parts = [CAPTIONS.empty_table()]
    for name, table in of_kept.items():
        if name.startswith(VARIANTS):
            parts.append(_variant(name.removeprefix(VARIANTS), keys, table))
        else:
            parts.append(_written(keys, table))
    return pa.concat_tables(parts)


def _variant(name: str, keys: pa.Array, results: pa.Table) -> pa.Table:
    """Return the rows of one variant, also of the clips for which the model gave none."""
    texts = column(results, "text").cast(pa.string())
    zeros = pa.array(np.zeros(len(keys), np.int32))
    return _table(
        keys,
        name,
        zeros,
        texts,
        pc.fill_null(column(results, "source"), "none"),
        fill_maps(column(results, "provenance")),
        pc.fill_null(column(results, "fault"), ""),
    )


def _written(keys: pa.Array, results: pa.Table) -> pa.Table:
    """Return a row for each caption of the written lists that have several."""
    lists = column(results, "written")
    of_clip = pc.list_parent_indices(lists).to_numpy()
    texts = pc.list_flatten(lists).cast(pa.string())
    firsts = np.searchsorted(of_clip, of_clip)  # each list begins at its first element
    numbers = pa.array((np.arange(len(of_clip)) - firsts).astype(np.int32))
    rows = pa.array(of_clip)
    nothing = pa.array([[]] * len(texts), CAPTIONS.field("caption_provenance").type)
    source = column(results, "source").take(rows)
    return _table(
        keys.take(rows), WRITTEN, numbers, texts, source, nothing, repeat_value("", pa.string(), len(texts))
    )


def _table(
    keys: pa.Array,
    name: str,
    numbers: pa.Array,
    texts: pa.Array,
    sources: pa.Array,
    provenance: pa.Array,
    reasons: pa.Array,
) -> pa.Table:
    tokens = token_counts(pc.fill_null(texts, "")).cast(pa.int32())
    names = repeat_value(name, pa.string(), len(keys))
    columns = [keys, names, numbers, texts, tokens, sources, provenance, reasons]
    return pa.table(columns, schema=CAPTIONS)


def describe_variants(tables: Iterable[pa.Table]) -> tuple[str, ...]:
    """Return in words how many clips have no caption of a variant, by its name, and how many a written list.

    Args:
        tables: Tables from `captions_table`.
    """
    lacking: Counter[str] = Counter()
    first: dict[str, str] = {}
    lists = contradicting = 0
    for table in tables:
        failed = table.filter(pc.is_null(table.column("caption")))
        names, reasons = (failed.column(name).to_pylist() for name in ("name", "reason"))
        lacking.update(names)
        first = dict(zip(reversed(names), reversed(reasons), strict=True)) | first
        written = pc.and_(pc.equal(table.column("name"), WRITTEN), pc.equal(table.column("number"), 0))
        lists += pc.sum(written).as_py() or 0
        contradicted = pc.map_lookup(table.column("caption_provenance"), CONTRADICTED, "first")
        contradicting += len(contradicted) - contradicted.null_count
    notes = [
        f"{pluralize(count, 'clip has', 'clips have')} no caption {name} (captions.parquet, reason); other captions"
        f" stay, and --retry-failed asks again; the first: {first[name]}"
        for name, count in sorted(lacking.items())
    ]
    if contradicting:
        notes.append(
            f"{pluralize(contradicting, 'variant')} of captions.parquet: contradicts the measured camera movement"
            f" after all attempts (caption_provenance: {CONTRADICTED})"
        )
    if lists:
        notes.append(
            f"{pluralize(lists, 'clip has', 'clips have')} a list of written captions: the first is the caption, and"
            f" its texts, {MOST_TEXTS} at most, are in captions.parquet under the name {WRITTEN}"
        )
    return tuple(notes)
