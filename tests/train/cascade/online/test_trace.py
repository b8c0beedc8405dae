from functools import partial

import numpy as np
import pytest

from reelweave.loader.buckets.tokens import COMPRESSIONS
from reelweave.loader.errors import UsageError
from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.train.cascade.placement.levels import NEITHER
from reelweave.train.cascade.placement.mapper import place
from reelweave.train.cascade.placement.topology import PRESETS
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.scheduling.static import best_static, static
from reelweave.train.cascade.simulation.cases import DEGREES, HUNYUAN_720P
from reelweave.train.cascade.simulation.simulate import Noise
from reelweave.train.cascade.simulation.trace import (
    Cluster,
    ReplaySummary,
    arithmetic,
    read_trace,
    replay,
    samples_of,
)

HUNYUAN = COMPRESSIONS["hunyuanvideo"]


def cluster(gpus: int) -> Cluster:
    return Cluster(HUNYUAN_720P, PRESETS["dgx-h100"].holding(gpus), gpus, DEGREES, 30_000)


def workload_steps(steps: int, count: int):
    """Videos of 480p and images, drawn one by one, with M_mem at 30,000 tokens."""
    workload = WORKLOADS["koala-wide"]
    sizes = workload.batch_sizes(workload.budgets.model_copy(update={"memory_tokens": 30_000}))
    return [samples_of(workload.draw(sizes, 0, step, count), workload.buckets) for step in range(steps)]


def test_a_trace_of_shapes_and_of_tokens(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(
        '{"gpus": 8, "steps": [[{"frames": 37, "height": 720, "width": 1280}, {"tokens": 20000, "batch": 2}]]}'
    )
    trace = read_trace(file)
    (samples,) = trace.samples(HUNYUAN)
    assert samples.length.tolist() == [36_000, 20_000]
    assert samples.batch.tolist() == [1, 2]
    problem = cluster(trace.gpus).problem(samples)
    assert problem.has_SM[:, Module.VAE].tolist() == [True, False]  # tokens alone: latents are cached
    assert arithmetic(HUNYUAN_720P, samples)[1, Module.VAE] == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"gpus": 8, "steps": []}', "steps"),
        (
            '{"gpus": 8, "steps": [[{"frames": 5}]]}',
            r"at step 0, sample 0: a sample needs frames, height and width, or tokens",
        ),
        ('{"gpus": 8, "steps": [[{"length": 5}]]}', r"at step 0, sample 0, key length"),
        ('{"gpus": 8, "steps": [[{"tokens": 5}], []]}', r"at step 1"),
        ('{"gpus": 0, "steps": [[{"tokens": 5}]]}', r"at key gpus"),
        ("gpus: 8", "is no trace"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named(tmp_path, text, told):
    file = tmp_path / "trace.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_trace(file).samples(HUNYUAN)
    with pytest.raises(UsageError, match=r"missing cannot be read"):
        read_trace(tmp_path / "missing")


def test_without_noise_a_replay_is_what_was_planned():
    steps = workload_steps(2, 8)
    assert len({len(samples.batch) for samples in steps}) == 1
    for iteration in replay(steps, cluster(8), lambda problem: best_static(problem)[0]):
        assert iteration.executed.makespan_s == pytest.approx(iteration.planned_s)
        assert iteration.idle == iteration.executed.idle


def test_a_replay_compares_planners():
    steps = workload_steps(3, 16)

    def summary(planner, **how) -> ReplaySummary:
        return ReplaySummary.of(replay(steps, cluster(16), planner, noise=Noise(), **how))

    ours = summary(lambda problem: plan(problem).schedule)
    again = summary(lambda problem: plan(problem).schedule)
    assert (again.iteration_s, again.idle) == (ours.iteration_s, ours.idle)
    random = summary(lambda problem: static(problem, 8, largest_first=False))
    assert ours.steps == random.steps == 3
    assert ours.iteration_s < random.iteration_s
    assert ours.idle < random.idle
    assert ours.flops_cv < random.flops_cv
    plain = summary(lambda problem: plan(problem).schedule, mapper=partial(place, priorities=NEITHER))
    assert plain.planned_s == ours.planned_s
    assert np.isfinite(plain.iteration_s)
