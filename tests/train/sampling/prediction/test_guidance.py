"""Guidance: several passes combined, on one rank and shared over several."""

import json
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.sampling.prediction.guidance import Guided, combine, rescale_guided
from reelweave.train.sampling.prediction.predictor import Window
from tests.train.ranks import Ranks
from tests.train.sampling.prediction.guidance_ranks import compute


def test_passes_shared_over_ranks_give_the_bits_of_one_process(ranks: Ranks, tmp_path: Path) -> None:
    """2, 3 and 4 passes on 1 to 4 ranks, one pass without a hang, rescaled, whole videos, and seeds that differ."""
    ended = ranks.run(compute, 4, str(tmp_path))
    assert ended.codes == [0] * 4, ended.errors
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [len(cases) for cases in found] == [77, 61, 45, 29]
    wrong = {
        f"rank {rank}: {name}"
        for rank, cases in enumerate(found)
        for name, right in cases.items()
        if not right
    }
    assert wrong == set()


def test_rescale_gives_a_share_of_the_prediction_the_spread_of_the_captions_own() -> None:
    generator = torch.Generator().manual_seed(0)
    conditioned, other = torch.randn(2, 2, 3, 4, 5, 6, generator=generator).unbind()
    guided = combine([conditioned, other], [7.5, -6.5])
    found = rescale_guided(guided, conditioned, 0.7)
    dims = [1, 2, 3, 4]
    whole = guided * (conditioned.std(dims, keepdim=True) / guided.std(dims, keepdim=True))
    torch.testing.assert_close(found, 0.7 * whole + 0.3 * guided)
    torch.testing.assert_close(rescale_guided(guided, conditioned, 1.0).std(dims), conditioned.std(dims))
    zeros = torch.zeros(1, 1, 2, 2, 2)
    assert torch.equal(rescale_guided(zeros, zeros, 1.0), zeros)


def test_rescale_of_divided_latents_is_refused() -> None:
    guided = Guided(lambda *_: torch.zeros(1), [], [], rescale=0.5)
    with pytest.raises(UsageError, match="rescale takes the spread of whole latents"):
        guided(torch.zeros(1, 1, 1, 1, 1), None, Window((0, 0, 0), (1, 1, 1)))
