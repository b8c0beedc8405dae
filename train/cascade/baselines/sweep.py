"""Dual approximation: list schedules of the least work that meets each of many target times.

Ludwig, Tiwari, "Scheduling malleable and nonmalleable parallel tasks" (1994). Targets below the bound yield
schedules in which samples follow each other on the same GPUs.
"""

import numpy as np

from reelweave.loader.base.arrays import IndexArray
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.bound import lower_bound
from reelweave.train.cascade.scheduling.list_schedule import (
    Choice,
    ListScratch,
    critical_path,
    makespan,
    schedule_samples,
)

_TARGETS = 48
_FIRST, _LAST = 0.25, 1.5  # targets relative to the bound


def sweep(problem: Problem) -> Schedule:
    """Return the best of the targets' schedules."""
    bound_s = lower_bound(problem)
    scratch = ListScratch.of(problem)
    degrees = (least_work(problem, bound_s * share) for share in np.geomspace(_FIRST, _LAST, _TARGETS))
    choices = (Choice(degree_SM, critical_path(problem, degree_SM)) for degree_SM in degrees)
    return schedule_samples(problem, min(choices, key=lambda choice: makespan(problem, choice, scratch)))


def least_work(problem: Problem, target_s: float) -> IndexArray:
    """Return the degrees of least work that meet a target time, else the fastest, int64 [S, M]."""
    dit_SK = problem.times_SMK[:, Module.DIT]
    degree_SMK = np.full((problem.samples, len(Module), len(problem.degrees_K)), -1)
    degree_SMK[:, Module.DIT] = np.arange(len(problem.degrees_K))
    work_SK, chain_SK = problem.work_SMK[:, Module.DIT].copy(), dit_SK.copy()
    for module in Module:
        has_S = problem.has_SM[:, module]
        if module is Module.DIT or not has_S.any():
            continue
        # For each degree of the DiT, the other modules' least work within the remaining time.
        time_S1K, work_S1K = problem.times_SMK[:, None, module], problem.work_SMK[:, None, module]
        in_time_SKK = time_S1K <= (target_s - dit_SK)[:, :, None]
        cheapest_SK = np.where(in_time_SKK, work_S1K, np.inf).argmin(axis=2)
        fastest_S1 = problem.times_SMK[:, module].argmin(axis=1)[:, None]
        chosen_SK = np.where(in_time_SKK.any(axis=2), cheapest_SK, fastest_S1)
        own_S1 = np.arange(problem.samples)[:, None]
        degree_SMK[:, module] = np.where(has_S[:, None], chosen_SK, -1)
        work_SK += np.where(has_S[:, None], problem.work_SMK[own_S1, module, chosen_SK], 0.0)
        taken_SK = dit_SK + np.where(has_S[:, None], problem.times_SMK[own_S1, module, chosen_SK], 0.0)
        chain_SK = np.maximum(chain_SK, taken_SK)
    in_time_SK = chain_SK <= target_s
    k_S = np.where(
        in_time_SK.any(axis=1), np.where(in_time_SK, work_SK, np.inf).argmin(axis=1), chain_SK.argmin(axis=1)
    )
    return np.asarray(degree_SMK[np.arange(problem.samples), :, k_S])
