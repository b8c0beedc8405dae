"""Two dimensions, clusters and outliers of vectors of unit length, in memory that a few thousand of them bound.

scikit-learn has no such bound (docs/benchmarks/report.md, "Beside scikit-learn").
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.dedup.clusters import clusters
from reelweave.curate.dedup.products import nearest_centre
from reelweave.pipelines.report.numbers.places import spread

MOST_DIMENSIONS = 1024
"""Dimensions above which vectors are first projected at random."""
FITTED = 20_000
"""Most vectors, evenly spread, from which centres of clusters are fitted; the others go to the nearest one."""
REFERENCES = 2048
"""Most vectors, evenly spread, among which the neighbours of a vector are sought."""
NEIGHBOURS = 5
MOST_CLUSTERS = 10
NEAR = 0.97
"""Cosine from which on two clips nearly show the same, as `dedup.semantic.min_similarity` is by default."""
MOST_PAIRS = 12

_LEAST_IN_CLUSTER = 8  # mean size
_ITERATIONS = 20
_FENCE = 3.0  # Tukey's "far out", in interquartile ranges
_ROUNDING = 1e-6  # of cosines in 32 bits
_LEAST_FENCED = 8
_NOTHING = 1e-12  # variance of no direction at all
_ROWS = 4096
_COMPARED = 512
_SEED = 0

Floats = NDArray[np.float32]
Vectors = NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True)
class Clusters:
    """Clusters of vectors [N], the largest first.

    Attributes:
        number_N: number of each vector's cluster, from 1.
        likeness_N: cosine of each vector to the centre of its cluster.
    """

    number_N: NDArray[np.int32]
    likeness_N: Floats


@dataclass(frozen=True)
class NearAcross:
    """Clips of val that are nearly clips of train, among the clips of a map.

    Attributes:
        val: number of clips of val that were compared.
        train: number of clips of train that they were compared with.
        near: number of clips of val with a clip of train at least as like as `NEAR`.
        pairs: places on the map of clips of val and of the clip of train most like them, and the cosine; the most like
            first, at most `MOST_PAIRS`.
    """

    val: int
    train: int
    near: int
    pairs: list[tuple[int, int, float]]


def near_across(vectors_ND: Vectors, is_val_N: NDArray[np.bool_]) -> NearAcross | None:
    """Return which clips of val are nearly clips of train; None where one side is empty.

    Args:
        vectors_ND: vectors of unit length.
        is_val_N: True for vectors of val, False for those of train.
    """
    val_V, train_T = np.flatnonzero(is_val_N), np.flatnonzero(~is_val_N)
    if not len(val_V) or not len(train_T):
        return None
    train_TD = vectors_ND[train_T].astype(np.float32)
    best_V, like_V = np.zeros(len(val_V), np.int64), np.zeros(len(val_V), np.float32)
    for first in range(0, len(val_V), _COMPARED):
        part = slice(first, first + _COMPARED)
        cosine_PT = vectors_ND[val_V[part]].astype(np.float32) @ train_TD.T
        best_V[part], like_V[part] = cosine_PT.argmax(axis=1), cosine_PT.max(axis=1)
    near_V = np.flatnonzero(like_V >= NEAR - _ROUNDING)
    most_like = near_V[np.argsort(-like_V[near_V], kind="stable")][:MOST_PAIRS]
    pairs = [(int(val_V[row]), int(train_T[best_V[row]]), float(like_V[row])) for row in most_like]
    return NearAcross(len(val_V), len(train_T), len(near_V), pairs)


def reduce_vectors(vectors_ND: Vectors) -> Vectors:
    """Return vectors of at most `MOST_DIMENSIONS` numbers and unit length.

    Longer ones are projected on random directions of a fixed seed, which keeps angles to a few hundredths
    (Johnson and Lindenstrauss).
    """
    if vectors_ND.shape[1] <= MOST_DIMENSIONS:
        return vectors_ND
    drawn = np.random.default_rng(_SEED)
    found_NM = np.zeros((len(vectors_ND), MOST_DIMENSIONS), np.float32)
    for some in _slices(vectors_ND.shape[1]):
        width = len(range(*some.indices(vectors_ND.shape[1])))
        found_NM += vectors_ND[:, some].astype(np.float32) @ drawn.standard_normal(
            (width, MOST_DIMENSIONS), np.float32
        )
    length_N1 = np.linalg.norm(found_NM, axis=1, keepdims=True)
    found_NM /= np.where(length_N1 > 0, length_N1, np.float32(1))
    return found_NM


def principal_map(vectors_ND: Vectors) -> tuple[Floats, list[float]]:
    """Return coordinates [N, 2] on the two principal axes, and the share of the variance on each.

    All vectors count, and sums are of 64 bits. An axis points to where its largest number is positive, so that
    equal vectors have equal coordinates on every machine. Axes without variance give 0.
    """
    count, width = vectors_ND.shape
    mean_D = sum(part_ND.sum(0) for part_ND in _parts(vectors_ND)) / count
    covariance_DD = np.zeros((width, width))
    for part_ND in _parts(vectors_ND):
        part_ND -= mean_D
        covariance_DD += part_ND.T @ part_ND
    covariance_DD /= count
    variance_D, axes_DD = np.linalg.eigh(covariance_DD)
    axes_D2, variance_2 = np.zeros((width, 2)), np.zeros(2)
    for component in range(min(2, width)):
        axis_D, variance = axes_DD[:, -1 - component], float(variance_D[-1 - component])
        if variance > _NOTHING:
            axes_D2[:, component] = axis_D * np.sign(axis_D[np.argmax(np.abs(axis_D))])
            variance_2[component] = variance
    total = float(np.trace(covariance_DD))
    points_N2 = np.concatenate([(part_ND - mean_D) @ axes_D2 for part_ND in _parts(vectors_ND)])
    return points_N2.astype(np.float32), (variance_2 / total if total > _NOTHING else variance_2).tolist()


def neighbour_map(vectors_ND: Vectors) -> Floats | None:
    """Return coordinates [N, 2] by UMAP of a fixed seed, which keeps neighbours together; at least 4 vectors.

    None where umap-learn is not installed.
    """
    try:
        from umap import UMAP
    except ImportError:
        return None
    fitted = UMAP(n_neighbors=min(15, len(vectors_ND) - 1), metric="cosine", random_state=_SEED, n_jobs=1)
    return np.asarray(fitted.fit_transform(vectors_ND.astype(np.float32)), np.float32)


def vector_clusters(vectors_ND: Vectors) -> Clusters:
    """Return clusters by spherical k-means, as semantic deduplication makes them; at most `MOST_CLUSTERS`."""
    fitted_FD = vectors_ND[spread(len(vectors_ND), FITTED)].astype(np.float32)
    size = max(_LEAST_IN_CLUSTER, math.ceil(len(fitted_FD) / MOST_CLUSTERS))
    nearest_F = clusters(fitted_FD, size, _ITERATIONS)
    centres_KD = np.stack([fitted_FD[nearest_F == centre].mean(0) for centre in np.unique(nearest_F)])
    length_K1 = np.linalg.norm(centres_KD, axis=1, keepdims=True)
    centres_KD /= np.where(length_K1 > 0, length_K1, np.float32(1))
    of_N = np.zeros(len(vectors_ND), np.int64)
    likeness_N = np.zeros(len(vectors_ND), np.float32)
    for some in _slices(len(vectors_ND)):
        part_ND = vectors_ND[some].astype(np.float32)
        of_N[some] = nearest_centre(part_ND, centres_KD)
        likeness_N[some] = np.einsum("nd,nd->n", part_ND, centres_KD[of_N[some]])
    used_K, first_K, count_K = np.unique(of_N, return_index=True, return_counts=True)
    number_K = np.zeros(len(centres_KD), np.int32)
    number_K[used_K[np.lexsort((first_K, -count_K))]] = np.arange(1, len(used_K) + 1)
    return Clusters(number_K[of_N], likeness_N)


def outlier_scores(vectors_ND: Vectors) -> Floats:
    """Return for each vector 1 minus its mean cosine to the `NEIGHBOURS` nearest others.

    Others are all of them, or `REFERENCES` evenly spread ones; such a sample ranks outliers as well as all
    (Sugiyama and Borgwardt, 2013). A vector without others has 0.
    """
    count = len(vectors_ND)
    places_R = np.array(spread(count, REFERENCES), np.int64)
    references_DR = vectors_ND[places_R].astype(np.float32).T
    near = min(NEIGHBOURS, len(places_R) - 1)
    score_N = np.zeros(count, np.float32)
    if near < 1:
        return score_N
    for some in _slices(count):
        cosine_NR = vectors_ND[some].astype(np.float32) @ references_DR
        start, stop, _ = some.indices(count)
        own_R = np.flatnonzero((places_R >= start) & (places_R < stop))
        cosine_NR[places_R[own_R] - start, own_R] = -np.inf
        score_N[some] = 1 - np.partition(cosine_NR, -near, axis=1)[:, -near:].mean(1)
    return score_N


def outlier_fence(score_N: Floats) -> float:
    """Return the score above which a vector is far from all others.

    It lies three interquartile ranges above the third quartile, and is infinity for very few vectors.
    """
    if len(score_N) < _LEAST_FENCED:
        return math.inf
    first, third = np.quantile(score_N.astype(np.float64), [0.25, 0.75])
    return float(third + _FENCE * (third - first) + _ROUNDING)


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, count, _ROWS))


def _parts(vectors_ND: Vectors) -> Iterator[NDArray[np.float64]]:
    return (vectors_ND[some].astype(np.float64) for some in _slices(len(vectors_ND)))
