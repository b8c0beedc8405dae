"""Validation during training: it changes no bit of the run, and its videos are those of `reelweave sample`."""

import json

import numpy as np
import pytest
import torch

from tests.train.validation_runs import CASES, PROMPTS, compare, validation_config
from train.sampling.generate import generate
from train.sampling.trained import load_trained

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ranks):
    out = tmp_path_factory.mktemp("validation")
    ended = ranks.run(compare, 2, str(out))
    assert ended.codes == [0] * 2, ended.errors
    return out


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_the_run_is_the_same_to_the_bit(runs, name):
    with_videos, without = (
        [(step["loss"], step["grad_norm"]) for step in lines(runs / name / kind / "metrics.jsonl")]
        for kind in ("with", "without")
    )
    assert len(with_videos) == 3
    assert with_videos == without
    weights = [
        load_trained(str(runs / name / kind), CPU, group)
        for kind in ("with", "without")
        for group in ("model", "ema")
    ]
    for one, other in zip(weights[:2], weights[2:], strict=True):
        for key, tensor in one.bundle.state_dict().items():
            assert torch.equal(tensor, other.bundle.state_dict()[key]), key


@pytest.mark.parametrize("name", CASES)
def test_its_videos_are_those_of_the_checkpoint(runs, name):
    checkpoint = runs / name / "with" / "checkpoints" / "step-000002"
    trained = load_trained(str(checkpoint), CPU)
    assert trained.weights == "ema"
    for number, prompt in enumerate(PROMPTS):
        config = validation_config(seed=7 + number)
        expected = generate(trained.bundle, trained.config, config, [prompt])[0].numpy()
        found = np.frombuffer(
            (runs / name / "with/validation/step-000002" / f"{number:03d}.mp4").read_bytes(), np.uint8
        )
        if name == "tp":  # another order of sums
            assert np.abs(found.reshape(expected.shape).astype(int) - expected).max() <= 1
        else:
            assert np.array_equal(found.reshape(expected.shape), expected), prompt
