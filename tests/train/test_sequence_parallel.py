"""The contract of train/kernels/sequence_parallel.py, with real processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.train.sequence_worker import FORMS
from train.kernels.sequence_parallel import clip_groups, frame_groups

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=[2, 3])
def reports(request):
    """What a group of this many ranks found: form, kind of reduction, gradient: error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": str(request.param), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.sequence_worker"],
            cwd=ROOT,
            env=os.environ | common | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(request.param)
    ]
    told = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), told
    return json.loads(told[0][0])


@pytest.mark.parametrize("form", FORMS)
def test_local_gradients_summed_once_are_those_of_one_process(form, reports):
    found = reports[form]
    assert set(found["sum"]) == {"modulation", "linear", "offset", "weight", "bias"}
    assert max(found["sum"].values()) < 1e-13
    assert max(found["tokens"].values()) < 1e-13


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mistake", ["mean", "two sums", "alone"])
def test_nothing_but_one_sum_will_do(form, mistake, reports):
    assert min(reports[form][mistake].values()) > 0.05


def test_groups_of_a_rank():
    ends = torch.tensor([0, 4, 4, 6, 11, 12], dtype=torch.int32)
    assert clip_groups(ends, 0, 5).tolist() == [0, 4, 4, 5, 5, 5]
    assert clip_groups(ends, 5, 12).tolist() == [0, 0, 0, 1, 6, 7]
    # Two samples of three frames of four tokens, of which the rank has the 3rd to the 9th of each.
    assert frame_groups(2, 3, 12, 2, 9).tolist() == [0, 2, 6, 7, 9, 13, 14]
