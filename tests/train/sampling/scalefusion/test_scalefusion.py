"""An ST-DiT over gloo ranks by ScaleFusion's schedule equals one process; jagged slices; what is refused."""

import json
from types import SimpleNamespace

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiTConfig, STDiTConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.build import build_denoiser
from reelweave.train.parallel.context.slices import SliceSharding
from reelweave.train.parallel.context.traffic import AttentionSize, slices_bytes
from reelweave.train.sampling.config import SampleLayoutConfig
from reelweave.train.sampling.layout import build_layout
from reelweave.train.sampling.ranks.mesh import SamplingMesh, SamplingRanks
from reelweave.train.sampling.scalefusion.jagged import JaggedAxis, TokenDivision, pass_bytes
from reelweave.train.sampling.scalefusion.runner import ScaleFusion
from reelweave.train.sampling.scalefusion.schedule import DSP, Slicing
from tests.thorough import but, chosen
from tests.train.sampling.scalefusion.scalefusion_ranks import (
    CHANNELS,
    GROUPS,
    HIDDEN,
    MODEL,
    TEXT,
    cases,
    compute,
)


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks, request):
    """What each rank found, by case; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("scalefusion")
    ended = ranks.run(compute, 4, str(out), chosen(request, "size"))
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize("size", but((4,), GROUPS, (3,)))
def test_every_layout_equals_one_process_and_sends_what_the_formula_says(findings, size):
    bounds = {"float64": 1e-10, "float32": 1e-5}
    wrong = {
        (rank, str(case), what): error
        for case in cases()
        if case.ranks == size
        for rank in GROUPS[size]
        for what, error in findings[rank][str(case)].items()
        if not error <= (bounds[case.dtype] if what == "out" else 0)
    }
    assert wrong == {}
    first = findings[GROUPS[size][0]]
    assert all("out" in first[str(case)] for case in cases() if case.ranks == size)


@pytest.mark.parametrize("size", but((4,), (3, 4)))
def test_a_seed_has_one_video_in_every_layout(findings, size):
    hashes = [findings[rank][f"videos on {size}"] for rank in GROUPS[size]]
    assert {"alone", "scalefusion", "dsp"} <= hashes[0].keys()
    assert len({found for of_rank in hashes for found in of_rank.values()}) == 1


def test_windows_of_larger_videos_equal_one_process(findings):
    assert max(found["windowed"] for found in findings) < 1e-10


def test_ranks_measure_and_choose_alike(findings):
    first, *others = (findings[rank]["measured"] for rank in GROUPS[3])
    assert others == [first, first]
    token_s, slice_s, byte_s, exchange_s, token_bytes, chosen = first
    assert token_s["spatial"] > 0 < token_s["temporal"]
    assert min(slice_s, byte_s) >= 0 < exchange_s
    assert token_bytes == HIDDEN * 4
    assert Slicing(*chosen).check()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("length", "slices"), [(1, 1), (7, 7), (13, 4), (60, 4), (31, 6)])
def test_slices_are_even_over_slices_and_ranks(length, slices, ranks):
    axis = JaggedAxis.even(length, slices, ranks)
    totals = [axis.total(rank) for rank in range(ranks)]
    assert axis.cells.tokens == sum(totals) == length
    assert max(totals) - min(totals) <= 1
    for lengths in (axis.slices.lengths, *(axis.counts(number) for number in range(slices))):
        assert max(lengths) - min(lengths) <= 1
    parts = [axis.part(number, rank) for number in range(slices) for rank in range(ranks)]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(length))


def test_whole_layers_send_what_slices_of_training_send():
    """DSP is the exchange of `reelweave.train.parallel.context.slices`, where each activation goes there and back."""
    ranks, size = 4, AttentionSize(1, 4, 6, 8)
    for frames in (7, 8):
        places, whole = (SliceSharding.of([(frames, 3, 4)], axis, ranks) for axis in ("place", "frame"))
        trained = [slices_bytes(size, places, whole, rank) for rank in range(ranks)]
        division = TokenDivision.of(frames, 12, DSP, ranks)
        ours = [pass_bytes(division, rank, 1, size.token * size.value_bytes, 0) for rank in range(ranks)]
        # What is left over lies on other ranks.
        assert sum(ours) == pytest.approx(sum(trained), rel=0.02 if frames % ranks else 0)
    for slicing in (DSP, Slicing(3, 4, 1, 2)):
        division = TokenDivision.of(8, 12, slicing, ranks)
        assert [pass_bytes(division, rank, 2, 1, 0) for rank in range(ranks)] == [2 * (6 * 3 + 9 * 2)] * 4


def test_what_cannot_be_sliced_is_refused_in_words():
    tiny = {"hidden": 24, "heads": 4, "layers": 1}
    for config, words in (
        (DiTConfig(**tiny), "ST-DiTs only"),
        (STDiTConfig(**tiny, full_attention=True), "model.full_attention=true"),
    ):
        with pytest.raises(UsageError, match=words):
            ScaleFusion(build_denoiser(config, CHANNELS, TEXT), None)
    dit = build_denoiser(MODEL, CHANNELS, TEXT)
    with pytest.raises(UsageError, match=r"L_T=2 must lie in 0\.\.N_T=1"):
        ScaleFusion(dit, None, Slicing(1, 1, 2, 0))
    with pytest.raises(UsageError, match="cannot cut 3 frames of tokens into N_T=4 slices"):
        TokenDivision.of(3, 8, Slicing(), 2)
    mesh = SamplingMesh(ring=1)
    with pytest.raises(UsageError, match=r"layout scalefusion .* raise ring or ulysses above 1"):
        build_layout(
            SimpleNamespace(dit=dit),
            SamplingRanks(mesh, World(0, 1, torch.device("cpu"))),
            SampleLayoutConfig(scalefusion=(4, 4, 1, 3)),
        )
