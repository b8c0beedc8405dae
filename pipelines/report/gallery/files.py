"""Files of the gallery: its page, pictures, and data in chunks that the page loads as it needs them."""

import base64
import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.processors import processors
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import RunError
from reelweave.pipelines.report.clips.media import ClipBytes, locate_clip, staged_clips
from reelweave.pipelines.report.gallery.choice import pictured_rows
from reelweave.pipelines.report.gallery.rows import COLUMNS, GalleryRows
from reelweave.pipelines.report.gallery.strips import Strip, strip
from reelweave.pipelines.report.numbers.dataset_map import DatasetMap
from reelweave.pipelines.report.numbers.scores import Scores
from reelweave.pipelines.report.thresholds import can_be_set
from reelweave.pipelines.report.web.files import Files, data_file
from reelweave.pipelines.report.web.template import render

if TYPE_CHECKING:
    from reelweave.pipelines.report.buckets import ReportConfig

CHUNK_ROWS = 2000
CHUNK_SOURCES = 5000
_CAPTION_BYTES = 6 << 20
"""Characters of all captions together; above, the longest are cut short."""
_FEWEST_CHARS = 40
_MOST_CLIP_BYTES = 256 << 20  # larger clips get no picture
_READERS = 4


@dataclass(frozen=True)
class Gallery:
    """Gallery of the clips of a dataset.

    Attributes:
        rows: its rows.
        pictures: strip of frames by row, as name of its file, number of frames, width and height of one.
        captions: caption of each row; "" where it has none.
        files: content by path: ``gallery.html``, ``pictures/*.jpg`` and ``data/*.js``.
    """

    rows: GalleryRows
    pictures: dict[int, tuple[str, int, int, int]]
    captions: pa.ChunkedArray
    files: Files


def make_gallery(
    dataset: Dataset,
    config: "ReportConfig",
    mapped: DatasetMap,
    scores: Scores,
    most_chars: int | None = None,
    on_picture: Callable[[int, int], None] = lambda *_: None,
) -> Gallery:
    """Return the gallery of a dataset.

    Args:
        dataset: clips that get a picture are read.
        config: buckets, and how many clips get a picture.
        mapped: map of its embeddings; clips that stand for its clusters, and outliers, get a picture, too.
        scores: its scores.
        most_chars: characters after which captions are cut; None to keep them within their share of the files.
        on_picture: called with the number of clips that were looked at for a picture, and of all that will be.
    """
    further = dataset.rows_at(mapped.shown_rows, ["key"]).column("key").to_pylist()
    accounting = dataset.read_columns("accounting", COLUMNS)
    first = pictured_rows(accounting, config.max_clips, config.max_rejected, further)
    rows = GalleryRows.of(dataset, accounting, first, scores.clips)
    del accounting  # rows hold a copy in another order
    strips: dict[str, bytes] = {}
    pictures = {}
    for row, row_strip in _strips(dataset, rows, len(first), on_picture):
        name = hashlib.sha256(row_strip.jpeg).hexdigest()[:20]
        strips[f"pictures/{name}.jpg"] = row_strip.jpeg
        pictures[row] = (name, row_strip.frames, row_strip.width, row_strip.height)
    captions = rows.index_column(dataset, "caption", "")
    if most_chars is None:
        most_chars = _most_chars(pc.utf8_length(captions).to_numpy())
    data = _data(dataset, rows, pictures, config, mapped, scores, captions, most_chars, len(first))
    title = "/".join(dataset.storage.root.rsplit("/", 2)[-2:])
    page = render(
        "gallery.html",
        title=f"Clips of {title}",
        subtitle=f"{len(rows.accounting):,} rows of {dataset.storage.root}: kept clips, and what was left out",
        notes=_notes(rows, len(first), pictures),
        figures=[],
        charts=[],
    )
    return Gallery(rows, pictures, captions, Files(strips, data, {"gallery.html": page.encode()}))


def _notes(rows: GalleryRows, chosen: int, pictures: Collection[int]) -> list[str]:
    """Return how many of the clips that were left out and chosen for a picture have none, if any."""
    table = rows.accounting.slice(0, chosen)
    cut = pc.and_(pc.not_equal(table.column("state"), "kept"), pc.is_valid(table.column("key")))
    rejected = np.flatnonzero(np.asarray(cut, np.bool_)).tolist()
    missing = sum(row not in pictures for row in rejected)
    if not missing:
        return []
    return [
        f"{missing:,} of the {len(rejected):,} clips shown here that were cut and then left out have no picture: they"
        " are not in the curation's ledger. run.keep_rejected keeps them there, as long as .ledger stays beside the"
        " shards."
    ]


def _strips(
    dataset: Dataset, rows: GalleryRows, count: int, on_picture: Callable[[int, int], None]
) -> Iterator[tuple[int, Strip]]:
    """Yield row and strip of each of the first rows that has a clip and can be decoded."""
    staged = staged_clips(dataset) if (rows.index_N[:count] < 0).any() else {}
    keys = rows.accounting.column("key").slice(0, count).to_pylist()
    frames = rows.index_column(dataset, "frames", 0).slice(0, count).to_pylist()
    states = rows.accounting.column("state").slice(0, count).to_pylist()

    # Keys of clips that were left out here and are kept by another source.
    left_out = pa.array(
        [key for key, state in zip(keys, states, strict=True) if key and state != "kept"], pa.string()
    )
    is_left_out = pc.is_in(left_out, dataset.column("key").combine_chunks())
    again = set(left_out.filter(is_left_out).to_pylist())

    def make_strip(row: int) -> Strip | None:
        key = keys[row]
        if key is None:
            return None
        clip = locate_clip(dataset, key) if states[row] == "kept" or key in again else staged.get(key)
        return None if clip is None else _strip(clip, frames[row])

    with ThreadPoolExecutor(min(_READERS, processors())) as readers:
        for row, strip_bytes in enumerate(readers.map(make_strip, range(count))):
            on_picture(row + 1, count)
            if strip_bytes is not None:
                yield row, strip_bytes


def _strip(clip: ClipBytes, frames: int) -> Strip | None:
    if clip.size > _MOST_CLIP_BYTES:
        return None
    try:
        return strip(clip.read(), frames)
    except RunError:
        return None  # `reelweave verify` names damaged clips


def _data(
    dataset: Dataset,
    rows: GalleryRows,
    pictures: dict[int, tuple[str, int, int, int]],
    config: "ReportConfig",
    mapped: DatasetMap,
    scores: Scores,
    captions: pa.ChunkedArray,
    most_chars: int,
    chosen: int,
) -> Files:
    count = len(rows.accounting)
    kinds, kind_N = rows.kinds
    sources, source_N = rows.sources
    buckets, bucket_N = rows.buckets(dataset, config.buckets)
    length_N = pc.utf8_length(captions).to_numpy()
    settable = [score for score in scores.all_stats if can_be_set(score)]
    columns: dict[str, NDArray[Any]] = {
        "kind": kind_N,
        "source": source_N,
        "bucket": bucket_N,
        "length": np.minimum(length_N, 65535).astype("<u2"),
        "of": (rows.of_N + 1).astype("<u4"),
        "scored": (rows.scored_N + 1).astype("<u4"),
        "hash": rows.key_hashes,
    }
    about = {
        "dataset": dataset.storage.root,
        "count": count,
        "kinds": kinds,
        "buckets": buckets,
        "sources": len(sources),
        "chunkRows": CHUNK_ROWS,
        "chunkSources": CHUNK_SOURCES,
        "mostChars": most_chars if most_chars < int(length_N.max(initial=0)) else None,
        "pictures": pictures,
        "chosen": chosen,
        "scores": [
            [score.name, score.least, score.most, score.min_threshold, score.max_threshold]
            for score in settable
        ],
        "columns": {name: [column.dtype.itemsize, _pack_column(column)] for name, column in columns.items()},
        "clusters": [int((mapped.cluster_M == cluster).sum()) for cluster in mapped.samples],
        "outliers": len(mapped.outliers),
    }
    # The server answers place.js itself.
    files: dict[str, bytes | Callable[[], bytes]] = {
        "data/rows.js": data_file("rows", about),
        "data/place.js": data_file("place", {"plays": False, "searches": False}),
    }
    if len(mapped.row_M):
        files["data/map.js"] = data_file("map", _points(rows, mapped))
    for chunk_number, start in enumerate(range(0, len(sources), CHUNK_SOURCES), 1):
        chunk = {"sources": sources[start : start + CHUNK_SOURCES]}
        files[f"data/sources-{chunk_number:04}.js"] = data_file(f"sources-{chunk_number:04}", chunk)
    table = pa.table(
        {
            "key": rows.accounting.column("key"),
            "start": pc.round(rows.accounting.column("start_s"), 3),
            "end": pc.round(rows.accounting.column("end_s"), 3),
            "reason": rows.accounting.column("reason"),
            "caption": captions,
            **{name: rows.index_column(dataset, name, 0) for name in ("frames", "width", "height")},
            "fps": pc.round(rows.index_column(dataset, "fps", 0.0), 3),
        }
    )
    for chunk_number, start in enumerate(range(0, count, CHUNK_ROWS), 1):
        name = f"clips-{chunk_number:04}"
        files[f"data/{name}.js"] = partial(_chunk, name, table.slice(start, CHUNK_ROWS), most_chars)
    return Files(files)


def _chunk(name: str, table: pa.Table, most_chars: int) -> bytes:
    """Return the text of some rows; a column of equal values is that value."""
    captions = pc.utf8_slice_codeunits(table.column("caption"), 0, most_chars)
    columns = table.set_column(table.schema.get_field_index("caption"), "caption", captions).to_pydict()
    return data_file(
        name,
        {
            name: values[0] if len(set(values)) == 1 and values[0] is not None else values
            for name, values in columns.items()
        },
    )


def _points(rows: GalleryRows, mapped: DatasetMap) -> dict[str, Any]:
    """Return the columns of the map, with the gallery's row of each clip plus 1; 0 without one."""
    columns: dict[str, NDArray[Any]] = {
        "row": (rows.rows_of_index(mapped.row_M) + 1).astype("<u4"),
        "x": mapped.x_M.astype("<f4"),
        "y": mapped.y_M.astype("<f4"),
        "cluster": mapped.cluster_M.astype("<u4"),
        "outlier": mapped.outlier_M.astype("<f4"),
    }
    far = None if math.isinf(mapped.fence) else mapped.fence
    return {"fence": far, "columns": {name: _pack_column(column) for name, column in columns.items()}}


def _most_chars(length_N: NDArray[np.int64]) -> int:
    """Return the largest number of characters of a caption with which all fit into their share of the files."""
    low, high = _FEWEST_CHARS, max(_FEWEST_CHARS, int(length_N.max(initial=0)))
    while low < high:
        middle = (low + high + 1) // 2
        if np.minimum(length_N, middle).sum() <= _CAPTION_BYTES:
            low = middle
        else:
            high = middle - 1
    return low


def _pack_column(column_N: NDArray[Any]) -> str:
    return base64.b64encode(column_N.tobytes()).decode()
