"""Sampling in the layouts of training: the predictions of gloo processes against one process."""

import hashlib
import json

import pytest
import torch

from reelweave.train.config.model import DiTConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.sampling.trained.load import load_trained
from tests.thorough import but, chosen, thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.sampling.layout_ranks import CASES, LOADED, compute, load


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks, request):
    """What each rank found, by case; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("ranks")
    ended = ranks.run(compute, 4, str(out), chosen(request, "case"))
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


ALWAYS = ("fsdp, tp", "tp, ring", "pp, fsdp", "float32")
"""Each model, and each kind of layout once."""


@pytest.mark.parametrize("case", but(ALWAYS, [*CASES, "float32"], ("zero", "pp")))
def test_each_layout_predicts_what_one_process_does_also_with_other_weights(findings, case):
    found = [rank[case] for rank in findings]
    for each in found:
        assert max(each["errors"]) <= (1e-5 if case == "float32" else 1e-10)
    # Ranks that share a model agree in every bit.
    numbers = {each["number"] for each in found}
    assert len({(each["number"], *each["hash"]) for each in found}) == len(numbers)


LOADED_SHARES = {"fsdp": 0.3, "tp": 0.55, "tp, fsdp": 0.3, "pp": 0.3}
"""Share of the model's bytes that a rank has at most at any time, by layout."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in one process, of a model whose blocks are most of it."""
    out = tmp_path_factory.mktemp("run")
    config = tiny_config(1, every_steps=1)
    Trainer(
        config.model_copy(update={"model": DiTConfig(hidden=64, heads=4, layers=8)}), ClipStream(), out
    ).run()
    return out


@thorough
def test_a_rank_loads_its_part_of_a_checkpoint_and_never_the_whole(ranks, tmp_path, run):
    ended = ranks.run(load, 4, str(tmp_path), str(run))
    assert ended.codes == [0] * 4, ended.errors
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    dit = load_trained(str(run), torch.device("cpu")).bundle.dit
    whole = sum(parameter.nbytes for parameter in dit.parameters())
    expected = {
        name: hashlib.sha256(w.detach().numpy().tobytes()).hexdigest() for name, w in dit.named_parameters()
    }
    for name, share in LOADED_SHARES.items():
        assert max(rank[name]["peak"] for rank in found) < share * whole
    for name in LOADED:
        together = {}
        for rank in range(4):
            together |= found[rank][name]["weights"]
        assert together == expected, name
