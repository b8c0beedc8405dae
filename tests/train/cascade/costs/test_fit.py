"""Costs fitted to profiles whose parameters are known."""

from dataclasses import replace

import numpy as np
import pytest

from reelweave.loader.buckets.tokens import COMPRESSIONS
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.cost_model import CostModel, Links
from reelweave.train.cascade.costs.fit import FittedCosts, fit_costs
from reelweave.train.cascade.costs.vae_cost import UnitSeconds
from reelweave.train.cascade.problem import Module
from tests.train.cascade.costs.profiles import DIT, GRID, LINKS, SHAPES, SIZES, TEXT, VAE, efficiency, profile

GIB = 2**30


def fitted(rows, sizes=SIZES, links=None) -> FittedCosts:
    links = links or Links(balanced=True)
    return fit_costs(rows, "cascades.csv", sizes, links, COMPRESSIONS["wan"], text_tokens=64)


@pytest.fixture(scope="module")
def found() -> FittedCosts:
    return fitted(profile())


def test_times_of_unseen_shapes_come_out(found: FittedCosts) -> None:
    held_out = found.costs.held_out
    assert set(held_out) == {"text", "vae", "dit"}
    # The noise of the measured rows themselves is 2 %, 1.6 % of which are its mean.
    assert held_out["dit"].mean < 0.025
    assert held_out["text"].mean < 0.025
    assert held_out["vae"].mean < 0.06
    assert all(error.max < 0.25 for error in held_out.values())
    # A quarter of the 24 shapes, with three B and five degrees.
    assert held_out["dit"].rows == 6 * 3 * 5
    assert held_out["vae"].rows == 6 * 3
    assert found.notes == ()


def test_parameters_come_out(found: FittedCosts) -> None:
    dit, links = found.costs.dit, found.costs.links
    assert dit.linear_s == pytest.approx(DIT.linear_s, rel=0.03)
    assert dit.square_s == pytest.approx(DIT.square_s, rel=0.03)
    assert links.node_bytes_per_s == pytest.approx(LINKS.node_bytes_per_s, rel=0.1)
    assert links.network_bytes_per_s == pytest.approx(LINKS.network_bytes_per_s, rel=0.1)
    assert found.costs.text.sample_s == pytest.approx(TEXT.sample_s, rel=0.1)
    assert found.costs.compression == COMPRESSIONS["wan"]


def test_memory_counts_what_lies_there_and_no_peak_is_above_it(found: FittedCosts) -> None:
    rows = profile().of(Module.DIT)
    bytes_n = found.costs.dit.bytes_of_a_gpu(rows.batch, rows.length, rows.degree).diagonal()
    assert (bytes_n >= SIZES.states_bytes + rows.peak_gib * GIB - 1).all()
    assert found.costs.dit.token_bytes == pytest.approx(DIT.token_bytes, rel=0.01)
    assert found.costs.dit.states_bytes == pytest.approx(40.5 * GIB, rel=0.01)
    assert found.costs.vae.volume_bytes == pytest.approx(VAE.volume_bytes, rel=0.01)
    assert found.costs.text.memory_bytes == pytest.approx(40.1 * GIB)


def test_handed_over_tensors_lie_whole_on_each_gpu() -> None:
    sizes = replace(SIZES, handed_token_bytes=768.0, handed_sample_bytes=1e6)
    dit = fitted(profile(), sizes).costs.dit
    batch, length, degrees = np.array([2]), np.array([10_000]), np.array([1, 16])
    own = dit.model_copy(update={"handed_token_bytes": 0.0, "handed_sample_bytes": 0.0})
    more = dit.bytes_of_a_gpu(batch, length, degrees) - own.bytes_of_a_gpu(batch, length, degrees)
    assert more == pytest.approx(np.full((1, 2), 2 * (10_000 * 768 + 1e6)))


def test_trees_learn_what_a_line_cannot(found: FittedCosts) -> None:
    size_N3 = np.array(SHAPES)
    true_N = VAE.unit.seconds(size_N3) * efficiency(size_N3)
    unit = found.costs.vae.unit
    line_only = unit.model_copy(update={"residual": None})
    errors = [np.abs(one.seconds(size_N3) / true_N - 1).mean() for one in (unit, line_only)]
    assert errors[0] < 0.05 < errors[1]


def test_tiles_are_the_units_where_videos_are_cut() -> None:
    sizes = replace(SIZES, grid=GRID, at_once=False)
    true = VAE.model_copy(update={"grid": GRID, "at_once": False})
    costs = fitted(profile(vae=true, uneven=False), sizes).costs
    batch, size, degrees = np.array([1]), np.array([[33, 720, 1280]]), np.array([1, 2, 4, 8])
    assert costs.held_out["vae"].mean < 0.06
    assert costs.vae.seconds(batch, size, degrees) == pytest.approx(
        true.seconds(batch, size, degrees), rel=0.06
    )
    # Tiles come one after the other, so a whole picture's memory is that of a tile.
    assert costs.vae.volume_bytes == pytest.approx(true.volume_bytes, rel=0.05)


def test_bandwidths_that_nothing_measured_stay_as_given() -> None:
    links = Links(node_bytes_per_s=123e9, network_bytes_per_s=45e9, balanced=True)
    found = fitted(profile(degrees=(1,)), links=links)
    assert found.costs.links == links
    assert len(found.notes) == 2
    assert "123 GB/s" in found.notes[0]
    near = fitted(profile(degrees=(1, 2, 4)), links=links)
    assert near.costs.links.node_bytes_per_s == pytest.approx(200e9, rel=0.15)
    assert near.costs.links.network_bytes_per_s == 45e9
    assert len(near.notes) == 1
    whole = fitted(profile(degrees=(1,)), replace(SIZES, exchanged_bytes=0.0))
    assert [note for note in whole.notes if "--degrees 1" in note] == list(whole.notes)


def test_exchanges_that_take_no_time_take_none() -> None:
    fast = LINKS.model_copy(update={"node_bytes_per_s": 1e30})
    found = fitted(profile(degrees=(1, 2, 4, 8), noise=0.0, links=fast))
    assert found.costs.links.node_bytes_per_s > 1e12
    assert found.costs.held_out["dit"].max < 0.001


def test_what_cannot_be_trusted_is_told() -> None:
    found = fitted(profile(noise=0.3))
    assert found.costs.held_out["dit"].mean > 0.1
    assert any("the dit is off by" in note for note in found.notes)


def test_too_few_shapes_are_refused() -> None:
    rows = profile()
    lengths = np.unique(rows.length)
    with pytest.raises(UsageError, match=r"cascades\.csv: the vae has 4 shapes, and 5 are needed"):
        few = rows.where((rows.module != Module.VAE) | np.isin(rows.length, lengths[:4]))
        fitted(few)
    with pytest.raises(UsageError, match="no rows of the text"):
        fitted(rows.where(rows.module != Module.TEXT))
    with pytest.raises(UsageError, match="the vae is measured on one rank"):
        fitted(replace(rows, degree=np.where(rows.module == Module.VAE, 2, rows.degree)))
    with pytest.raises(UsageError, match="no row of the vae has a peak_gib"):
        fitted(profile(peaks=False))


def test_costs_are_kept_as_json(found: FittedCosts) -> None:
    kept = CostModel.model_validate_json(found.costs.model_dump_json())
    assert kept == found.costs
    assert kept.vae.unit.residual.trees
    size_N3 = np.array(SHAPES)
    assert kept.vae.unit.seconds(size_N3).tolist() == found.costs.vae.unit.seconds(size_N3).tolist()


def test_a_line_serves_where_rows_are_few() -> None:
    rows = profile()
    vae = rows.module == Module.VAE
    few = rows.where(~vae | ((rows.batch == 1) & np.isin(rows.length, np.unique(rows.length)[::4])))
    assert isinstance(fitted(few).costs.vae.unit, UnitSeconds)
    assert fitted(few).costs.vae.unit.residual is None
