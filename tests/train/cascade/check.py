"""Validity check of schedules, independent of the planners' code."""

from collections import Counter

import numpy as np

from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.schedule import Run, Schedule

_TOLERANCE_S = 1e-6


def violations(problem: Problem, schedule: Schedule) -> list[str]:
    """List violations of the problem's constraints in words, most basic first; empty for a valid schedule.

    Checks Arachne's constraints: every cascade once with one degree (Eqs. 2, 5), memory (6), precedence
    (4) and
    capacity (7); the last on individual GPUs, each of which runs one cascade at a time.
    """
    return [
        *_complete(problem, schedule),
        *(message for run in schedule.runs for message in _alone(problem, run)),
        *_in_order(schedule),
        *_one_at_a_time(schedule),
    ]


def _complete(problem: Problem, schedule: Schedule) -> list[str]:
    planned, required = Counter(run.cascade for run in schedule.runs), Counter(problem.cascades())
    return [
        *(f"{_name(cascade)} is missing" for cascade in required - planned),
        *(f"{_name(cascade)} is planned too often" for cascade in planned - required),
    ]


def _alone(problem: Problem, run: Run) -> list[str]:
    """List violations that one run shows by itself."""
    name, degree = _name(run.cascade), len(run.gpus)
    if len(set(run.gpus)) != degree or not all(0 <= gpu < problem.gpus for gpu in run.gpus):
        return [f"{name} has no GPUs of its own among {problem.gpus}: {run.gpus}"]
    degree_indices = np.flatnonzero(problem.degrees_K == degree)
    if not len(degree_indices):
        return [f"{name} has {degree} GPUs, which is no degree"]
    sample, module = run.cascade
    seconds = problem.seconds_SMK[sample, module, degree_indices[0]]
    memory = problem.memory_SMK[sample, module, degree_indices[0]]
    messages = []
    if not abs(run.end_s - run.start_s - seconds) <= _TOLERANCE_S:
        messages.append(f"{name} takes {seconds:.6g} s on {degree} GPUs, not {run.end_s - run.start_s:.6g} s")
    if run.start_s < 0:
        messages.append(f"{name} starts at {run.start_s:.6g} s, before the iteration")
    if memory > problem.memory:
        messages.append(f"{name} needs {memory:.3g} bytes on each of {degree} GPUs of {problem.memory:.3g}")
    return messages


def _in_order(schedule: Schedule) -> list[str]:
    ends: dict[int, float] = {}
    for run in schedule.runs:
        if run.cascade.module != Module.DIT:
            ends[run.cascade.sample] = max(ends.get(run.cascade.sample, 0.0), run.end_s)
    return [
        f"{_name(run.cascade)} starts at {run.start_s:.6g} s, before what it needs ends at {end:.6g} s"
        for run in schedule.runs
        if run.cascade.module == Module.DIT
        and run.start_s < (end := ends.get(run.cascade.sample, 0.0)) - _TOLERANCE_S
    ]


def _one_at_a_time(schedule: Schedule) -> list[str]:
    messages, free_at, last = [], [0.0] * schedule.gpus, [""] * schedule.gpus
    for run in sorted(schedule.runs, key=lambda run: (run.start_s, run.end_s)):
        for gpu in run.gpus:
            if 0 <= gpu < schedule.gpus:
                if run.start_s < free_at[gpu] - _TOLERANCE_S:
                    messages.append(
                        f"GPU {gpu} runs {_name(run.cascade)} and {last[gpu]} at {run.start_s:.6g} s"
                    )
                free_at[gpu], last[gpu] = run.end_s, _name(run.cascade)
    return messages


def _name(cascade: tuple[int, Module]) -> str:
    sample, module = cascade
    return f"the {Module(module).name} of sample {sample}"
