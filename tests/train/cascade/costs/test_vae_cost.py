"""Work of the VAE, dealt out to GPUs."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.cost_model import CostModel, Links, SampleShapes
from reelweave.train.cascade.costs.vae_cost import AnyVAECost, FittedVAECost, VAECost, slowest
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.simulation.cases import HUNYUAN_720P
from reelweave.train.models.encoders.tile_grid import TileGrid
from tests.train.cascade.costs.profiles import GRID, VAE

ONE = np.array([1])
DEGREES = np.array([1, 2, 3, 4, 8, 16])


def test_the_gpu_with_most_units_counts() -> None:
    units = np.array([3.0, 1.0, 1.0, 1.0, 1.0])
    assert slowest(units, np.array([1, 2, 4, 5, 8])).tolist() == [7.0, 5.0, 4.0, 3.0, 3.0]


def test_videos_are_dealt_out_whole() -> None:
    one_s = VAE.seconds(ONE, np.array([[33, 480, 832]]), ONE)[0, 0] - VAE.call_s
    seconds = VAE.seconds(np.array([6]), np.array([[33, 480, 832]]), DEGREES)[0]
    assert (seconds - VAE.call_s) / one_s == pytest.approx([6, 3, 2, 2, 1, np.inf])  # at most 8


def test_tiles_are_dealt_out_where_videos_are_cut() -> None:
    assert GRID.tiles(5, 256, 256).tolist() == [[5, 256, 256]]
    tiles = GRID.tiles(5, 256, 400)
    # Two rows and three columns, the last of which are what is left.
    assert tiles[:, 1:].tolist() == [[h, w] for h in (256, 64) for w in (256, 208, 16)]
    in_time = TileGrid(
        frames=17, frames_step=12, height=256, width=256, height_step=192, width_step=192
    ).tiles(33, 256, 256)
    assert in_time[:, 0].tolist() == [17, 17, 9]
    cut = VAE.model_copy(update={"grid": GRID})
    size = np.array([[33, 720, 1280]])
    seconds = cut.seconds(ONE, size, DEGREES)[0]
    assert seconds[4] < seconds[3] < seconds[1] < seconds[0]
    assert VAE.seconds(ONE, size, DEGREES)[0, :5].tolist() == [seconds_of_whole(size)] * 5


def seconds_of_whole(size) -> float:
    return VAE.call_s + float(VAE.unit.seconds(size)[0])


def test_memory_is_of_what_is_encoded_together() -> None:
    size, batch = np.array([[33, 480, 832]]), np.array([4])
    volume = 33 * 480 * 832
    together = VAE.bytes_of_a_gpu(batch, size, np.array([1, 2, 4]))[0] - VAE.memory_bytes
    assert together == pytest.approx(VAE.volume_bytes * volume * np.array([4, 2, 1]))
    one_by_one = VAE.model_copy(update={"at_once": False})
    alone = one_by_one.bytes_of_a_gpu(batch, size, np.array([1, 2, 4]))[0] - VAE.memory_bytes
    assert alone == pytest.approx(VAE.volume_bytes * volume * np.ones(3))


def test_a_problem_has_the_vae_of_those_with_frames() -> None:
    costs = HUNYUAN_720P.model_copy(update={"vae": VAE})
    two = np.array([1, 1])
    samples = SampleShapes(two, np.array([33, 0]), np.array([14_400, 14_400]), 480 * two, 832 * two)
    problem = costs.problem(samples, 8, (1, 2, 4, 8), 80 * 2**30)
    assert problem.has_SM[:, Module.VAE].tolist() == [True, False]
    with pytest.raises(UsageError, match="all three of sample 0"):
        costs.problem(SampleShapes(two, np.array([33, 0]), np.array([100, 100])), 8, (1, 2), 80 * 2**30)


def test_kinds_are_told_apart_and_tiles_are_those_without() -> None:
    read = TypeAdapter(AnyVAECost).validate_python
    assert isinstance(read({"tile_s": 0.1, "tile_frames": 4, "tiles_per_picture": 4}), VAECost)
    assert isinstance(read(VAE.model_dump()), FittedVAECost)
    kept = CostModel.model_validate_json(HUNYUAN_720P.model_dump_json())
    assert kept == HUNYUAN_720P


def test_balanced_groups_send_only_what_is_for_other_nodes() -> None:
    paper, balanced = (Links(balanced=balanced) for balanced in (False, True))
    degrees = np.array([1, 2, 8, 12, 16])
    assert paper.bytes_per_s(degrees).tolist() == [300e9, 300e9, 300e9, 45e9, 45e9]
    rates = balanced.bytes_per_s(degrees)
    assert rates[:3].tolist() == [300e9] * 3
    # Of 11 others 6 lie on the other node, of 15 others 8.
    assert rates[3:] == pytest.approx([45e9 * 11 / 6, 45e9 * 15 / 8])
