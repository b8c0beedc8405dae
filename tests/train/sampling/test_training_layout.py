"""Sampling in the layouts of training: the predictions of gloo processes against one process."""

import json

import pytest

from tests.train.sampling.layout_ranks import CASES, compute


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks):
    """What each rank found, by case; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("ranks")
    ended = ranks.run(compute, 4, str(out))
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize("case", [*CASES, "float32"])
def test_each_layout_predicts_what_one_process_does_also_with_other_weights(findings, case):
    found = [rank[case] for rank in findings]
    for each in found:
        assert max(each["errors"]) <= (1e-5 if case == "float32" else 1e-10)
    # Ranks that share a model agree in every bit.
    numbers = {each["number"] for each in found}
    assert len({(each["number"], *each["hash"]) for each in found}) == len(numbers)
