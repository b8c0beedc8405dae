"""A step is the same step in every layout: the cases of tests/train/layouts.py against one process alone."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.layouts import CASES, Case, run_case
from train import checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process, in float64."""
    out, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_case(Case(), out)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All cases, by world size; the processes of a world run its cases one after the other."""
    return {size: run_world(size, tmp_path_factory.mktemp(f"world{size}")) for size in CASES}


def run_world(size: int, out: Path) -> Path:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.train.layouts", str(out)]
    members = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | common | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    told = [member.communicate(timeout=400)[1] for member in members]
    assert [member.returncode for member in members] == [0] * size, told
    return out


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """Weights, moments and steps behind the last step."""
    folder = checkpoint.latest(out)
    return load_file(folder / checkpoint.MODEL) | load_file(folder / checkpoint.OPTIMIZER)


@pytest.mark.parametrize("name", CASES[4])
def test_any_layout_makes_the_steps_of_one_process(alone, runs, name):
    own, expected = metrics(runs[4] / name), metrics(alone)
    for key in ("loss", "grad_norm", "lr"):
        assert [line[key] for line in own] == pytest.approx([line[key] for line in expected], rel=1e-10)
    for key in ("step", "samples", "tokens", "skipped"):
        assert [line[key] for line in own] == [line[key] for line in expected]
    assert min(line["grad_norm"] for line in expected) > 0.1, "nothing is clipped"
    found, wanted = tensors(runs[4] / name), tensors(alone)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype
        assert (found[key] - tensor).norm() <= 1e-10 * tensor.norm(), key


@pytest.mark.parametrize("name", ["fsdp", "zero"])
def test_two_ranks_with_a_microbatch_each_agree_in_every_bit(runs, name):
    own, expected = runs[2] / f"{name}-float32", runs[2] / "replicated-float32"
    assert [line["loss"] for line in metrics(own)] == [line["loss"] for line in metrics(expected)]
    found, wanted = tensors(own), tensors(expected)
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("name", ["fsdp", "zero"])
def test_weights_in_bfloat16_follow_their_float32_masters(runs, name):
    own, expected = metrics(runs[2] / f"{name}-bfloat16"), metrics(runs[2] / "replicated-bfloat16")
    assert [line["loss"] for line in own] == pytest.approx([line["loss"] for line in expected], rel=1e-3)
    assert [line["grad_norm"] for line in own] == pytest.approx(
        [line["grad_norm"] for line in expected], rel=1e-2
    )
    found = tensors(runs[2] / f"{name}-bfloat16")
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert any((tensor != tensor.bfloat16()).any() for tensor in found.values())
