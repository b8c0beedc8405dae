"""Clusters of an embedding, within which semantic duplicates are sought (SemDeDup, Abbas et al. 2023)."""

from reelweave.curate.dedup.cells import CellCentres, owners
from reelweave.curate.dedup.kmeans import OnGrid, kmeans
from reelweave.curate.dedup.products import IndexArray
from reelweave.curate.dedup.vector_file import Matrix
from reelweave.curate.models.device import Device

_FLAT = 256  # number of clusters above which they are made in two levels


def clusters(vectors: Matrix, size: int, iterations: int, device: Device = "cpu") -> IndexArray:
    """Assign each vector to a cluster, in the same way on every device.

    Args:
        vectors: Unit vectors [n, D].
        size: Mean number of vectors per cluster.
        iterations: Maximum number of iterations of k-means; they end early when nothing moves.
        device: Device of the products, as in `reelweave.curate.dedup.neighbours.near_pairs`.

    Returns:
        Cluster numbers, [n], from 0.
    """
    count = max(1, len(vectors) // size)
    if count > _FLAT:
        return owners(vectors, CellCentres.of(vectors, size, iterations, device))
    return kmeans(OnGrid(vectors), count, iterations, device)[1]
