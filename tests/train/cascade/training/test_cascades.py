"""Training by cascades on four ranks makes the steps of one process."""

import pytest
import torch

from tests.train.cascade.training.runs import CASES, train_case, train_cases
from tests.train.published import publish_text
from tests.train.ranks import Ranks
from tests.train.saved import metrics


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A frozen encoder."""
    said = publish_text(tmp_path_factory.mktemp("text"))
    return said | {"kind": "transformers", "max_text_tokens": 4}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    """The cases in this process, without cascades; those of one configuration once."""
    out, threads = tmp_path_factory.mktemp("alone"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in CASES:
            train_case(out / name, name, text)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text):
    out = tmp_path_factory.mktemp("cascades")
    with Ranks() as ranks:
        ended = ranks.run(train_cases, 4, str(out), text, list(CASES))
    assert ended.codes == [0] * 4, ended.errors
    return out


@pytest.mark.parametrize("name", CASES)
def test_cascades_make_the_steps_of_one_process(alone, runs, name):
    own, expected = metrics(runs / name), metrics(alone / name)
    rel = 1e-5 if "text" in name else 1e-10
    assert len(own) == len(expected) == 5
    for key in ("step", "samples", "tokens", "flops", "skipped", "loss", "grad_norm", "lr"):
        assert [line[key] for line in own] == pytest.approx([line[key] for line in expected], rel=rel), key
