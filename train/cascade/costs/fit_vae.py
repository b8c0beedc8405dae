"""Fit of the VAE's cost to a profile: linear in a unit's volume, with boosted trees for residuals (section IV-B)."""

import numpy as np

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.train.cascade.costs.boosting import boost_trees
from reelweave.train.cascade.costs.fit_lines import line_above, relative_fit
from reelweave.train.cascade.costs.profile_csv import Profile
from reelweave.train.cascade.costs.run_sizes import RunSizes
from reelweave.train.cascade.costs.vae_cost import FittedVAECost, UnitSeconds, units_of

_LEAST_CORRECTED = 8
"""Least number of rows for trees, which would overfit fewer."""


def fit_vae(rows: Profile, sizes: RunSizes, max_gpus: int) -> FittedVAECost:
    """Fit times and, if peaks were measured, memory.

    Args:
        rows: VAE rows of a profile, each on one rank.
        sizes: sizes derived from the run's configuration.
        max_gpus: maximum number of GPUs per microbatch.
    """
    units = [
        units_of(batch, size, sizes.grid)
        for batch, size in zip(rows.batch.tolist(), rows.size_n3.tolist(), strict=True)
    ]
    volume_n = np.array([size_N3.prod(axis=1).sum() for size_N3 in units], np.float64)
    count_n = np.array([len(size_N3) for size_N3 in units], np.float64)
    columns_n3 = np.stack([np.ones_like(count_n), count_n, volume_n], axis=1)
    call_s, fixed_s, volume_s = relative_fit(columns_n3, rows.seconds)
    line = UnitSeconds(fixed_s=fixed_s, volume_s=volume_s)
    cost = FittedVAECost(
        call_s=call_s,
        unit=line,
        grid=sizes.grid,
        most=max_gpus,
        memory_bytes=sizes.states_bytes,
        at_once=sizes.at_once,
    )
    if len(units) >= _LEAST_CORRECTED:
        cost = cost.model_copy(update={"unit": _correct_residuals(line, call_s, units, rows.seconds)})
    return cost.model_copy(update=_memory(rows, units, sizes))


def vae_seconds(cost: FittedVAECost, rows: Profile) -> Floats:
    """Return predicted seconds on one rank, float64 [n]."""
    return cost.seconds(rows.batch, rows.size_n3, np.array([1]))[:, 0]


def _correct_residuals(
    line: UnitSeconds, call_s: float, units: list[IndexArray], seconds_n: Floats
) -> UnitSeconds:
    """Add trees for relative residuals; each unit of a row shares its residual, weighted by its share of time."""
    distinct = [np.unique(size_N3, axis=0, return_counts=True) for size_N3 in units]
    size_N3 = np.concatenate([sizes for sizes, _ in distinct])
    line = line.model_copy(update={"pictures": tuple(map(tuple, np.unique(size_N3[:, 1:], axis=0).tolist()))})
    surplus, weight = [], []
    for (sizes, counts), seconds in zip(distinct, seconds_n.tolist(), strict=True):
        linear_N = line.linear(sizes) * counts
        total = float(linear_N.sum())
        surplus += [(seconds - call_s - total) / total if total else 0.0] * len(counts)
        weight += (linear_N / seconds).tolist()
    grown = boost_trees(line.features(size_N3), np.array(surplus), np.maximum(weight, 1e-9))
    return UnitSeconds.model_validate({**line.model_dump(), "residual": grown.model_dump()})


def _memory(rows: Profile, units: list[IndexArray], sizes: RunSizes) -> dict[str, float]:
    known_n = np.isfinite(rows.peak_gib)
    if not known_n.any():
        return {}
    volumes = [size_N3.prod(axis=1) for size_N3 in units]
    encoded_n = np.array([float(volume.sum() if sizes.at_once else volume.max()) for volume in volumes])
    start, slope = line_above(encoded_n[known_n], rows.peak_gib[known_n] * 2**30)
    return {"memory_bytes": sizes.states_bytes + start, "volume_bytes": slope}
