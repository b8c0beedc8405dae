"""The contract of train/kernels/sequence_parallel.py, with real processes."""

import json

import pytest
import torch

from reelweave.train.kernels.sequence_parallel import clip_groups, frame_groups
from tests.train.kernels.sequence_worker import FORMS, report


@pytest.fixture(scope="module", params=[2, 3])
def reports(request, ranks, tmp_path_factory):
    """What a group of this many ranks found: form, kind of reduction, gradient: error."""
    out = tmp_path_factory.mktemp("ranks") / "report.json"
    ended = ranks.run(report, request.param, str(out))
    assert ended.codes == [0] * request.param, ended.errors
    return json.loads(out.read_text())


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
