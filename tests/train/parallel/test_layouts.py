"""A step is the same step in every layout: the cases of tests/train/parallel/layouts.py against one process alone."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reelweave.loader.storage import open_storage
from reelweave.train.checkpoint.export import export
from reelweave.train.checkpoint.folder import locate_checkpoint
from reelweave.train.checkpoint.state import read_checkpoint_state
from reelweave.train.step.optimizer import STATE
from tests.thorough import beyond, but, chosen
from tests.train.comparison import relative_errors
from tests.train.parallel.layouts import CASES, Case, run_case, run_cases


@pytest.fixture(scope="module")
def alone(tmp_path_factory, request):
    """The run of one process in float64, by model."""
    outs, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for model in {CASES[4][name].model for name in chosen(request, "name")}:
            outs[model] = tmp_path_factory.mktemp("alone")
            run_case(Case(grad_clip=0.1, model=model), outs[model])
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    return outs


@pytest.fixture(scope="module")
def four(tmp_path_factory, ranks, request):
    """Cases on four ranks, which run them one after the other."""
    return made(ranks, 4, tmp_path_factory.mktemp("four"), chosen(request, "name"))


@pytest.fixture(scope="module")
def two(tmp_path_factory, ranks, request):
    """Cases on two ranks; those of less than float32 where a test asks for them."""
    names = [
        "replicated",
        "fsdp",
        "zero",
        *chosen(request, "rounded"),
        *chain(*chosen(request, "divided", "whole")),
    ]
    return made(ranks, 2, tmp_path_factory.mktemp("two"), list(dict.fromkeys(names)))


def made(ranks, size: int, out: Path, names: Sequence[str]) -> Path:
    ended = ranks.run(run_cases, size, str(out), names)
    assert ended.codes == [0] * size, ended.errors
    return out


def metrics_of(out: Path, key: str) -> list:
    return [json.loads(line)[key] for line in (out / "metrics.jsonl").read_text().splitlines()]


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """Weights, moments, steps and averages behind the last step, put together from what the ranks wrote."""
    storage, folder = locate_checkpoint(str(out))
    state, found = read_checkpoint_state(storage, folder), {}
    for group, ending in (("model", ""), ("optimizer", ""), ("ema", ".ema")):
        export(storage, folder, state, group, None, open_storage(out), f"{group}.whole")
        wholes = load_file(out / f"{group}.whole")
        found |= {f"{name}{ending}": tensor for name, tensor in wholes.items()}
    return found


def kind_of(key: str) -> str:
    ending = key.rpartition(".")[2]
    return ending if ending in (*STATE, "ema") else "weight"


ALWAYS = ("ring-tp", "pp-zero-then-fsdp")
"""Each kind of layout once, but for Ulysses, whose gradients `test_context_models.py` has."""
OFTEN = (
    "hsdp-once",
    "st-dit-ulysses-fsdp",
    "tp-then-ring-zero",
    "pp-tp",
)


@pytest.mark.parametrize("name", but(ALWAYS, CASES[4], OFTEN))
def test_any_layout_makes_the_steps_of_one_process(alone, four, name):
    own, expected = four / name, alone[CASES[4][name].model]
    for key in ("step", "samples", "tokens", "skipped", "loss", "grad_norm", "lr"):
        assert metrics_of(own, key) == pytest.approx(metrics_of(expected, key), rel=1e-10), key
    assert min(metrics_of(expected, "grad_norm")) > 0.1, "nothing is clipped"
    found, wanted = tensors(own), tensors(expected)
    assert found.keys() == wanted.keys()
    assert {key: tensor.dtype for key, tensor in found.items()} == {
        key: tensor.dtype for key, tensor in wanted.items()
    }
    # Weights and each kind of moment have a scale of their own. The averages are float32.
    for kind in {kind_of(key) for key in wanted}:
        own, exact = ({key: x for key, x in of.items() if kind_of(key) == kind} for of in (found, wanted))
        bound = 1e-6 if kind == "ema" else 1e-10
        errors = relative_errors(own, exact)
        assert {key: error for key, error in errors.items() if not error <= bound} == {}


@pytest.mark.parametrize(
    ("divided", "whole"),
    beyond(1, [("zero", "replicated"), ("zero-8bit-then-replicated", "replicated-8bit")]),
)
def test_two_ranks_agree_in_every_bit_where_only_the_optimizer_is_divided(two, divided, whole):
    assert metrics_of(two / divided, "loss") == metrics_of(two / whole, "loss")
    found, wanted = tensors(two / divided), tensors(two / whole)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(found[key], tensor), key


def test_two_ranks_agree_in_float32_where_weights_are_divided(two):
    # Not in every bit: a rank's microbatches are summed after the ranks, and a block's share of what all blocks take
    # (text, time) before that of the others.
    assert metrics_of(two / "fsdp", "loss") == pytest.approx(metrics_of(two / "replicated", "loss"), rel=1e-6)
    found, wanted = tensors(two / "fsdp"), tensors(two / "replicated")
    for key, tensor in wanted.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-6)


def test_ranks_in_lockstep_may_look_at_other_numbers_of_held_out_batches(two):
    lines = [json.loads(line) for line in (two / "fsdp" / "losses.jsonl").read_text().splitlines()]
    looked = [(line["step"], line["whole"]["samples"]) for line in lines if line["of"] == "held_out"]
    # One sample on the first rank, four in each of two batches on the second, at four times.
    assert looked == [(2, 36)]


@pytest.mark.parametrize("rounded", beyond(1, ["fsdp-bfloat16", "zero-bfloat16"]))
def test_weights_in_bfloat16_follow_their_float32_masters(two, rounded):
    for key, bound in (("loss", 1e-3), ("grad_norm", 1e-2)):
        own, expected = (metrics_of(two / case, key) for case in (rounded, "replicated"))
        assert own != expected
        assert own == pytest.approx(expected, rel=bound)
    found = tensors(two / rounded)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert any((tensor != tensor.bfloat16()).any() for tensor in found.values())
