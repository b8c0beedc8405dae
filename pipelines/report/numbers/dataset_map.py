"""Map of a dataset's embeddings: where each clip lies, its cluster, and how far it is from others."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.search.vectors import MEMBER, stored_vectors
from reelweave.loader.blend.selection.leakage import val_mask
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import RunError
from reelweave.pipelines.report.buckets import ReportConfig
from reelweave.pipelines.report.numbers.places import spread
from reelweave.pipelines.report.numbers.vector_map import (
    NearAcross,
    near_across,
    neighbour_map,
    outlier_fence,
    outlier_scores,
    principal_map,
    reduce_vectors,
    vector_clusters,
)

SAMPLES = 4
"""Clips of a cluster that stand for it: those nearest to its centre."""
MOST_OUTLIERS = 24
"""Outliers that are named."""

_MOST_BYTES = 4 << 30
_LEAST_FOR_UMAP = 4
_NO_UMAP = "umap-learn is not installed, so the map shows principal axes: pip install umap-learn"


def _no_floats() -> NDArray[np.float32]:
    return np.zeros(0, np.float32)


def _no_rows() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


def _no_clusters() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class DatasetMap:
    """Clips [M] on a map; none, and a problem in words, where there can be none.

    Attributes:
        problem: why there is no map; "" with one.
        projection: "pca" or "umap".
        without: samples of the dataset without an embedding.
        note: requests that were not met, in words; "" if none.
        dimensions: numbers of an embedding.
        left_out: samples with an embedding that are not on the map.
        explained: share of the variance on both axes; None for projections without such.
        fence: outlier score above which a clip is far from all others; infinity where none is.
        row_M: row of each clip in the index, rising.
        x_M: first coordinate.
        y_M: second coordinate.
        cluster_M: number of the cluster, from 1, the largest first.
        likeness_M: cosine to the cluster's centre.
        outlier_M: outlier score, 0 to 2.
        near: clips of val that are nearly clips of train; None where the samples have one side.
    """

    problem: str
    projection: str
    without: int
    note: str = ""
    dimensions: int = 0
    left_out: int = 0
    explained: list[float] | None = None
    fence: float = math.inf
    row_M: NDArray[np.int64] = field(default_factory=_no_rows)
    x_M: NDArray[np.float32] = field(default_factory=_no_floats)
    y_M: NDArray[np.float32] = field(default_factory=_no_floats)
    cluster_M: NDArray[np.int32] = field(default_factory=_no_clusters)
    likeness_M: NDArray[np.float32] = field(default_factory=_no_floats)
    outlier_M: NDArray[np.float32] = field(default_factory=_no_floats)
    near: NearAcross | None = None

    @cached_property
    def samples(self) -> dict[int, NDArray[np.int64]]:
        """Places of the clips nearest to the centre of each cluster, by its number."""
        rows_of = {}
        for cluster in range(1, int(self.cluster_M.max(initial=0)) + 1):
            rows = np.flatnonzero(self.cluster_M == cluster)
            rows_of[cluster] = rows[np.argsort(-self.likeness_M[rows], kind="stable")][:SAMPLES]
        return rows_of

    @cached_property
    def outliers(self) -> NDArray[np.int64]:
        """Places of all clips beyond the fence, the farthest first."""
        far = np.flatnonzero(self.outlier_M > self.fence)
        return far[np.argsort(-self.outlier_M[far], kind="stable")]

    @property
    def shown_rows(self) -> NDArray[np.int64]:
        """Rows in the index of the clips that deserve a picture."""
        return self.row_M[
            np.concatenate([*self.samples.values(), self.outliers[:MOST_OUTLIERS]]).astype(np.intp)
        ]

    def to_json(self, keys: Any) -> dict[str, Any]:
        """Return clusters and outliers as JSON values; the coordinates of all clips are in the parquet file.

        Args:
            keys: column of the index.
        """

        def name_clusters(rows: NDArray[np.int64]) -> list[str]:
            return [keys[int(row)].as_py() for row in self.row_M[rows]]

        # Means over a cluster's clips, and the keys of those that stand for it.
        clusters = [
            {
                "cluster": cluster,
                "clips": int((own_M := self.cluster_M == cluster).sum()),
                "x": float(self.x_M[own_M].mean(dtype=np.float64)),
                "y": float(self.y_M[own_M].mean(dtype=np.float64)),
                "likeness": float(self.likeness_M[own_M].mean(dtype=np.float64)),
                "outliers": int((self.outlier_M[own_M] > self.fence).sum()),
                "keys": name_clusters(rows),
            }
            for cluster, rows in self.samples.items()
        ]
        far = self.outliers
        rows = [
            {
                "key": key,
                "cluster": int(self.cluster_M[row]),
                "score": float(self.outlier_M[row]),
                "x": float(self.x_M[row]),
                "y": float(self.y_M[row]),
            }
            for row, key in zip(far[:MOST_OUTLIERS].tolist(), name_clusters(far[:MOST_OUTLIERS]), strict=True)
        ]
        return {
            "problem": self.problem,
            "note": self.note,
            "projection": self.projection,
            "dimensions": self.dimensions,
            "clips": len(self.row_M),
            "without_embedding": self.without,
            "left_out": self.left_out,
            "explained": self.explained,
            "clusters": clusters,
            "outliers": {
                "fence": self.fence if math.isfinite(self.fence) else None,
                "count": len(far),
                "rows": rows,
            },
        }


def dataset_map(dataset: Dataset, config: ReportConfig) -> DatasetMap:
    """Return the map of a dataset's embeddings; those of `config.max_mapped` clips are read, evenly spread."""
    rows = dataset.members(MEMBER).rows()
    without = len(dataset) - len(rows)
    # Why there is no map, where there is none.
    if not config.max_mapped:
        return DatasetMap("the map is switched off: max_mapped is 0", config.projection, without)
    if not len(dataset):
        return DatasetMap("the dataset holds no clips: there is nothing to map", config.projection, without)
    if not len(rows):
        return DatasetMap(
            "the dataset holds no video embeddings; curate with embed.backend=perceptual or open_clip",
            config.projection,
            without,
        )
    chosen = rows[spread(len(rows), config.max_mapped)]
    try:
        stored_MD = stored_vectors(dataset, chosen, _MOST_BYTES)
    except RunError as error:
        return DatasetMap(str(error), config.projection, without)
    except FileNotFoundError as error:
        return DatasetMap(
            f"embeddings cannot be read: {error}; run `reelweave verify`", config.projection, without
        )
    # Axes, clusters and outliers of the same reduced vectors.
    vectors_MD = reduce_vectors(stored_MD)
    points_M2, explained = principal_map(vectors_MD)
    wants_umap = config.projection == "umap" and len(chosen) >= _LEAST_FOR_UMAP
    by_umap_M2 = neighbour_map(vectors_MD) if wants_umap else None
    clusters, outlier_M = vector_clusters(vectors_MD), outlier_scores(vectors_MD)
    if by_umap_M2 is not None:
        points_M2 = by_umap_M2
    return DatasetMap(
        problem="",
        note=_NO_UMAP if wants_umap and by_umap_M2 is None else "",
        projection="pca" if by_umap_M2 is None else "umap",
        dimensions=stored_MD.shape[1],
        without=without,
        left_out=len(rows) - len(chosen),
        explained=explained if by_umap_M2 is None else None,
        fence=outlier_fence(outlier_M),
        row_M=chosen,
        x_M=points_M2[:, 0],
        y_M=points_M2[:, 1],
        cluster_M=clusters.number_N,
        likeness_M=clusters.likeness_N,
        outlier_M=outlier_M,
        near=near_across(vectors_MD, val_mask(dataset, config.split)[chosen]),
    )
