"""Frechet distance between two sets of features, as in FID and FVD."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.errors import UsageError, first_line

_MOST_WIDTH = 8192


def frechet_distance(one_ND: NDArray[np.float64], other_MD: NDArray[np.float64]) -> float:
    """Return |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^1/2) of means m and covariances C.

    Dowson and Landau, 1982, eq. 4; Heusel et al., "GANs Trained by a Two Time-Scale Update Rule", 2017. The trace of
    the root is the sum of the singular values of C_1^1/2 C_2^1/2, which needs roots of symmetric matrices alone.
    """
    (mean, root), (other_mean, other_root) = _moments(one_ND), _moments(other_MD)
    shared = np.linalg.svd(root @ other_root, compute_uv=False).sum()
    traces = np.square(root).sum() + np.square(other_root).sum()
    return float(np.square(mean - other_mean).sum() + traces - 2 * shared)


def read_features(path: Path, option: str) -> NDArray[np.float64]:
    """Read features of videos, a .npy file of floats [videos, features], without pickle.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    try:
        features = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be read: {error.strerror or first_line(error)}") from error
    except (ValueError, EOFError) as error:  # numpy advises to load what it holds for a pickle
        raise UsageError(f"{option} {path} is no .npy file of numbers") from error
    if (
        features.ndim != 2
        or features.dtype.kind != "f"
        or len(features) < 2
        or not 0 < features.shape[1] <= _MOST_WIDTH
    ):
        raise UsageError(
            f"{option} {path} must hold floats of shape [videos, features], with two videos or more and up to"
            f" {_MOST_WIDTH} features; it holds {features.dtype} {list(features.shape)}"
        )
    values = np.asarray(features, np.float64)
    if not np.isfinite(values).all():
        raise UsageError(f"{option} {path} holds numbers that are not finite")
    return values


def _moments(features_ND: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean, and the symmetric root of the covariance."""
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(features_ND, rowvar=False)))
    root = (vectors * np.sqrt(values.clip(0))) @ vectors.T
    return features_ND.mean(axis=0), root
