"""Two simulated streams: closed forms of the paper, measured limits, and the choice of the four numbers."""

from itertools import product

import pytest

from reelweave.train.sampling.scalefusion.jagged import TokenDivision
from reelweave.train.sampling.scalefusion.schedule import DEFAULT, DSP, Slicing
from reelweave.train.sampling.scalefusion.simulate import (
    LayerCosts,
    blocking_buffer_bytes,
    buffer_bytes,
    choose,
    simulate,
)

FRAMES, PLACES, RANKS = 16, 32, 4
OWN = FRAMES * PLACES // RANKS
SENT = OWN * (RANKS - 1) // RANKS
"""Tokens of a rank, and those of them that change ranks before each layer."""
COSTS = LayerCosts(
    {"spatial": 3e-3, "temporal": 2e-3}, slice_s=0.0, byte_s=1e-4, exchange_s=0.0, token_bytes=8
)


def run(slicing: Slicing, pairs: int, costs: LayerCosts = COSTS, size=(FRAMES, PLACES)):
    return simulate(slicing, TokenDivision.of(*size, slicing, RANKS), pairs, costs)


def test_dsp_adds_up_what_it_computes_and_what_it_sends():
    found = run(DSP, 5)
    assert found.computing == pytest.approx(5 * OWN * 5e-3)
    assert found.exposed == found.seconds - found.computing
    assert found.exposed == pytest.approx(found.exchanging) == pytest.approx(10 * SENT * 8e-4)


@pytest.mark.parametrize("slicing", [Slicing(4, 4, 1, 1), DEFAULT, Slicing(2, 4, 2, 1)], ids=str)
def test_where_computation_is_longer_one_piece_of_each_layer_is_exposed(slicing):
    """Section 4.4: (Comm_T + Comm_S) / (N_S N_T) for each pair of layers."""
    pair = run(slicing, 9).exposed - run(slicing, 8).exposed
    assert pair == pytest.approx(2 * SENT * 8e-4 / (slicing.temporal * slicing.spatial))
    assert run(slicing, 9).exchanging == pytest.approx(run(DSP, 9).exchanging)


def test_without_lifting_a_slice_of_each_layer_is_exposed():
    """Section 4.3: Comm_T / N_T + Comm_S / N_S."""
    slicing = Slicing(4, 2, 0, 0)
    pair = run(slicing, 9).exposed - run(slicing, 8).exposed
    assert pair == pytest.approx(SENT * 8e-4 * (1 / 4 + 1 / 2))


def test_where_communication_is_longer_it_is_the_bound():
    costs = LayerCosts({"spatial": 1e-5, "temporal": 1e-5}, 0.0, 1e-4, 0.0, 8)
    found = run(DEFAULT, 20, costs)
    assert found.exchanging < found.seconds < 1.02 * found.exchanging


def test_nothing_is_faster_than_its_computation_or_its_communication():
    for size, slicing in product(((13, 7), (5, 31)), (DEFAULT, Slicing(5, 3, 2, 3), Slicing(3, 7, 0, 7))):
        for byte_s in (1e-5, 1e-4, 1e-3):
            costs = LayerCosts(COSTS.token_s, 1e-3, byte_s, 1e-4, 8)
            found = run(slicing, 4, costs, size)
            assert found.seconds >= max(found.computing, found.exchanging)


def test_a_rank_without_a_part_of_a_slice_computes_nothing_of_it():
    """One frame for each of four ranks, in two slices: each rank computes one slice, its own."""
    costs = LayerCosts({"spatial": 1e-3, "temporal": 0.0}, 1.0, 0.0, 0.0, 8)
    division = TokenDivision.of(4, 8, Slicing(2, 1, 0, 0), RANKS)
    found = simulate(Slicing(2, 1, 0, 0), division, 1, costs)
    assert found.computing == found.seconds == pytest.approx(1.0 + 8e-3 + 1.0)


def test_one_rank_sends_nothing():
    found = simulate(DEFAULT, TokenDivision.of(8, 8, DEFAULT, 1), 3, COSTS)
    assert found.exchanging == found.exposed == 0


def test_the_choice_is_the_best_of_all_candidates():
    costs = LayerCosts(COSTS.token_s, 0.02, 3e-4, 1e-3, 8)
    best, found = choose(FRAMES, PLACES, RANKS, 6, costs, most_slices=3)
    counts = list(product(range(1, 4), repeat=2))
    all_of_them = [
        Slicing(N_T, N_S, L_T, L_S)
        for N_T, N_S in counts
        for L_T, L_S in product(range(N_T + 1), range(N_S + 1))
    ]
    seconds = {slicing: run(slicing, 6, costs).seconds for slicing in all_of_them}
    assert found.seconds == seconds[best] == pytest.approx(min(seconds.values()), rel=1e-3)
    assert found.seconds < 0.8 * seconds[DSP]
    # Slices cost: where there is nothing to hide they are not taken.
    free = LayerCosts(COSTS.token_s, 0.02, 0.0, 0.0, 8)
    assert choose(FRAMES, PLACES, RANKS, 6, free, most_slices=3)[0][:2] == (1, 1)
    assert choose(2, 1, RANKS, 6, costs)[0].temporal <= 2


def test_buffers_are_at_least_1_87_times_below_those_of_dsp():
    for size in ((16, 32), (64, 8192), (60, 8160)):
        division = TokenDivision.of(*size, DEFAULT, RANKS)
        ours, dsp = (
            buffer_bytes(DEFAULT, division, 8),
            blocking_buffer_bytes(TokenDivision.of(*size, DSP, RANKS), 8),
        )
        assert dsp >= 1.87 * ours
    own = 16 * 32 // RANKS
    assert buffer_bytes(DEFAULT, TokenDivision.of(16, 32, DEFAULT, RANKS), 1) == own * 5 // 4
    assert blocking_buffer_bytes(TokenDivision.of(16, 32, DSP, RANKS), 1) == 3 * own
    # Whole layers in this executor hold what is sent beside what is received.
    assert buffer_bytes(DSP, TokenDivision.of(16, 32, DSP, RANKS), 1) == own
