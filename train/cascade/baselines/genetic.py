"""Arachne's genetic algorithm over degrees, evaluated by list scheduling (Algorithm 1).

The paper gives neither population, generations, rate nor elite; the values here are ours. As published it
starts from random degrees only, which fails on large clusters.
"""

import numpy as np
from pydantic import Field

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.base.compiled import compiled
from reelweave.loader.settings import Settings
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.list_schedule import (
    Choice,
    ListScratch,
    Tables,
    critical_path,
    place,
    schedule_samples,
)


class GeneticConfig(Settings):
    """Hyper-parameters of Algorithm 1."""

    population: int = Field(64, ge=2, description="number of chromosomes, p")
    generations: int = Field(60, ge=1, description="number of generations, G")
    mutation: float = Field(0.05, ge=0, le=1, description="share of degrees that are redrawn, mu")
    elite: int = Field(4, ge=1, description="number of best chromosomes that survive unchanged, epsilon")


def genetic(problem: Problem, seed: int = 0, config: GeneticConfig = GeneticConfig()) -> Schedule:  # noqa: B008
    """Return the best schedule of all generations.

    A chromosome holds the degrees of all cascades. Its fitness is the makespan of a list schedule by critical
    path. Parents win tournaments of two; a child inherits each degree from one of two parents.
    """
    draw = np.random.default_rng(seed)
    size = config.population

    def random_degrees() -> IndexArray:
        """Any possible ones, int64 [P, S, M]."""
        chance_PSMK = draw.random((size, *problem.possible_SMK.shape))
        degree_PSM = np.where(problem.possible_SMK, chance_PSMK, -1.0).argmax(axis=3)
        return np.where(problem.has_SM, degree_PSM, -1)

    degree_PSM = random_degrees()
    best_s, best_SM = np.inf, degree_PSM[0]
    for _ in range(config.generations):
        # Fitness; the best so far is kept.
        makespan_P = _fitness(problem, degree_PSM)
        ranked_P = np.argsort(makespan_P, kind="stable")
        if makespan_P[ranked_P[0]] < best_s:
            best_s, best_SM = makespan_P[ranked_P[0]], degree_PSM[ranked_P[0]].copy()
        # Two parents for each child, each the better one of two.
        rivals_2PR = draw.integers(0, size, (2, size, 2))
        wins_2P1 = makespan_P[rivals_2PR].argmin(axis=2)[..., None]
        one_P, other_P = np.take_along_axis(rivals_2PR, wins_2P1, axis=2)[..., 0]
        # Each degree is of one parent or the other, and some are drawn anew. The best go on as they are.
        crossed_PSM = draw.random(degree_PSM.shape) < 0.5
        child_PSM = np.where(crossed_PSM, degree_PSM[one_P], degree_PSM[other_P])
        mutated_PSM = draw.random(degree_PSM.shape) < config.mutation
        child_PSM = np.where(mutated_PSM, random_degrees(), child_PSM)
        child_PSM[: config.elite] = degree_PSM[ranked_P[: config.elite]]
        degree_PSM = child_PSM
    return schedule_samples(problem, Choice(best_SM, critical_path(problem, best_SM)))


def _fitness(problem: Problem, degree_PSM: IndexArray) -> Floats:
    """Return the makespans of all chromosomes, float64 [P]."""
    urgency_PSM = np.stack([critical_path(problem, degree_SM) for degree_SM in degree_PSM])
    tables = Tables(problem.times_SMK, problem.degrees_K)
    return _makespans(degree_PSM, urgency_PSM, tables, problem.gpus, ListScratch.of(problem))


@compiled
def _makespans(
    degree_PSM: IndexArray, urgency_PSM: Floats, tables: Tables, gpus: int, scratch: ListScratch
) -> Floats:
    population, samples = degree_PSM.shape[:2]
    makespan_P = np.empty(population)
    members_S = np.arange(samples)
    for individual in range(population):
        choice = Choice(degree_PSM[individual], urgency_PSM[individual])
        makespan_P[individual] = place(members_S, samples, choice, tables, gpus, np.inf, scratch)
    return makespan_P
