"""From the shapes of a step to its planning problem, and what decides its numbers."""

import math

import numpy as np
import pytest
import torch

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.cost_model import CostModel, DiTCost, TextCost
from reelweave.train.cascade.costs.vae_cost import FittedVAECost, UnitSeconds, VAECost
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.training.clip_costs import MeasuredCosts, NominalCosts, read_costs
from reelweave.train.cascade.training.step_problem import BatchShape, ClipShape, problem_of
from reelweave.train.config.cascade import CascadeConfig
from reelweave.train.models.bundle import Bundle
from tests.train.cascade.check import violations
from tests.train.clips import tiny_config

COSTS = CostModel(
    dit=DiTCost(linear_s=1e-3, square_s=1e-6, exchanged_bytes=0, states_bytes=100, token_bytes=1),
    vae=VAECost(tile_s=0.5, tile_frames=4, tiles_per_picture=1, memory_bytes=7),
    text=TextCost(sample_s=0.25),
)
SHORT, LONG = ClipShape(Bucket(5, 16, 16), 100, True), ClipShape(Bucket(9, 16, 16), 300, True)
STORED = LONG._replace(pixels=False)
DEGREES = (1, 2, 4)


def problem(*shapes, costs=None, degrees=DEGREES, memory=math.inf):
    return problem_of(shapes, costs or MeasuredCosts(COSTS), 4, degrees, memory, 16)


def test_samples_of_a_pack_add_up():
    found = problem(BatchShape((SHORT, LONG), False), BatchShape((SHORT, SHORT), False))
    dit_SK = found.seconds_SMK[:, Module.DIT]
    assert dit_SK[0, 0] == pytest.approx(0.4 + 1e-6 * (100**2 + 300**2))
    assert dit_SK[1, 0] == pytest.approx(0.2 + 1e-6 * 2 * 100**2)
    assert dit_SK[0] == pytest.approx(dit_SK[0, 0] / np.array(DEGREES))
    assert found.memory_SMK[0, Module.DIT].tolist() == [500, 300, 200]


def test_clips_of_a_vae_are_dealt_out_to_no_more_gpus_than_there_are():
    found = problem(BatchShape((SHORT, LONG, SHORT), False), degrees=(1, 2, 3, 4))
    # Two tiles of a short clip, three of a long one.
    assert found.seconds_SMK[0, Module.VAE].tolist() == [3.5, 2.0, 1.5, math.inf]
    # Beside the states; the encoder alone needs less.
    assert found.memory_SMK[0, Module.VAE, 0] == 100


def test_a_fitted_vae_takes_whole_clips_by_their_size():
    unit = UnitSeconds(fixed_s=1, volume_s=1e-3)
    vae = FittedVAECost(call_s=10, unit=unit, memory_bytes=200, volume_bytes=1)
    costs = MeasuredCosts(COSTS.model_copy(update={"vae": vae}))
    found = problem(BatchShape((SHORT, LONG, STORED), False), costs=costs, degrees=(1, 2, 4))
    volumes = 5 * 16 * 16, 9 * 16 * 16
    slow_s, fast_s = 12 + 1e-3 * sum(volumes), 11 + 1e-3 * volumes[1]
    assert found.seconds_SMK[0, Module.VAE].tolist() == pytest.approx([slow_s, fast_s, math.inf])
    assert found.memory_SMK[0, Module.VAE, :2].tolist() == [200 + sum(volumes), 200 + volumes[1]]


def test_what_is_stored_has_no_cascade():
    found = problem(BatchShape((STORED,), False), BatchShape((SHORT,), True))
    assert found.has_SM.tolist() == [[False, False, True], [True, True, True]]
    assert found.seconds_SMK[1, Module.TEXT].tolist() == [0.25, math.inf, math.inf]


def test_a_dit_has_no_more_gpus_than_tokens_in_a_frame():
    tiny = ClipShape(Bucket(5, 4, 8), 30, False)
    assert problem(BatchShape((tiny,), False)).possible_SMK[0, Module.DIT].tolist() == [True, True, False]
    assert problem(BatchShape((tiny, tiny), False)).possible_SMK[0, Module.DIT].all()


def test_other_modules_run_alone_where_the_dit_must_not():
    found = problem(BatchShape((SHORT,), True), degrees=(2, 4))
    assert found.degrees_K.tolist() == [1, 2, 4]
    assert found.possible_SMK[0, Module.DIT].tolist() == [False, True, True]
    assert found.has_SM.all()


def test_memory_forces_a_degree():
    found = problem(BatchShape((LONG,), False), memory=200)
    assert found.possible_SMK[0, Module.DIT].tolist() == [False, False, True]
    with pytest.raises(UsageError, match="fits with no degree"):
        problem(BatchShape((LONG,), False), memory=120)


def test_without_measurements_operations_decide():
    config = tiny_config()
    costs = NominalCosts(Bundle(config), config, torch.device("cpu"))
    found = problem(
        BatchShape((SHORT,), False), BatchShape((LONG, LONG), True), BatchShape((STORED,), False), costs=costs
    )
    dit_SK = found.seconds_SMK[:, Module.DIT]
    assert dit_SK[1] == pytest.approx(2 * dit_SK[2])
    assert (dit_SK[2] > dit_SK[0]).all()
    # Two GPUs are faster than one, and less than twice as fast.
    assert (dit_SK[:, 0] > dit_SK[:, 1]).all()
    assert (dit_SK[:, 1] > dit_SK[:, 0] / 2).all()
    vae_SK = found.seconds_SMK[:, Module.VAE]
    assert vae_SK[1, 0] == pytest.approx(2 * vae_SK[1, 1]) == pytest.approx(2 * 9 / 5 * vae_SK[0, 0])
    made = plan(found)
    assert violations(found, made.schedule) == []


def test_costs_are_read_from_a_file(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(COSTS.model_dump_json())
    assert read_costs(path) == MeasuredCosts(COSTS)
    path.write_text('{"dit": {"linear_s": -1}}')
    with pytest.raises(UsageError, match=r"costs\.json is no cost model, at dit\.linear_s"):
        read_costs(path)
    with pytest.raises(UsageError, match=r"none\.json cannot be read"):
        read_costs(tmp_path / "none.json")


def test_degrees_are_at_least_one():
    with pytest.raises(ValueError, match="degrees"):
        CascadeConfig(degrees=(0,))
