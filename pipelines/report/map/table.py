"""Table of the map for other programs, such as embedding-atlas: a row for each clip on it."""

from typing import Any

import pyarrow as pa

from reelweave.loader.dataset import Dataset
from reelweave.pipelines.report.gallery.files import Gallery
from reelweave.pipelines.report.numbers.dataset_map import DatasetMap
from reelweave.pipelines.report.numbers.scores import score_columns

FILE = "map.parquet"

_INDEX = (
    "key",
    "caption",
    "source",
    "start_s",
    "end_s",
    "duration_s",
    "fps",
    "frames",
    "height",
    "width",
    "text_tokens",
)


def map_table(dataset: Dataset, mapped: DatasetMap, gallery: Gallery) -> pa.Table:
    """Return the table: coordinates, cluster, outlier score, the clip's facts and scores.

    Args:
        dataset: the dataset.
        mapped: its map.
        gallery: its gallery, whose pictures are named relative to the table.
    """
    index = dataset.rows_at(mapped.row_M, [*_INDEX, "scores"])
    names = [gallery.pictures.get(int(row)) for row in gallery.rows.rows_of_index(mapped.row_M)]
    columns: dict[str, Any] = {
        "key": index.column("key"),
        "x": mapped.x_M,
        "y": mapped.y_M,
        "cluster": mapped.cluster_M,
        "outlier_score": mapped.outlier_M,
        "is_outlier": mapped.outlier_M > mapped.fence,
        **{name: index.column(name) for name in _INDEX[1:]},
        "thumbnail": pa.array([name and f"pictures/{name[0]}.jpg" for name in names], pa.string()),
    }
    scores = score_columns(index.column("scores"))
    columns |= {f"score_{name}": pa.array(scores[name], from_pandas=True) for name in sorted(scores)}
    return pa.table(columns)
