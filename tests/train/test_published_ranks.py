"""Published models divided over ranks: the same losses and the same checkpoints as on one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.clips import ClipStream
from tests.train.published import CASES, case_config
from train import checkpoint
from train.parallel.config import ParallelConfig
from train.trainer import Trainer


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    configs = {name: case_config(folder / "published" / name, name) for name in CASES}
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(config.model_dump_json())
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    module = (*torchrun, "-m", "tests.train.published_ranks", str(folder))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        module, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, configs


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_what_one_trains(on_two_ranks, tmp_path, name):
    out, configs = on_two_ranks
    torch.set_num_threads(1)
    alone = configs[name].model_copy(update={"parallel": ParallelConfig()})
    Trainer(alone, ClipStream(), tmp_path).run()
    assert losses(out / name) == pytest.approx(losses(tmp_path), rel=1e-4)
    for file in (checkpoint.OPTIMIZER, checkpoint.EMA):
        found, expected = (load_file(checkpoint.latest(run) / file) for run in (out / name, tmp_path))
        assert set(found) == set(expected)
        for key, tensor in expected.items():
            if key.endswith(".exp_avg_sq"):
                continue
            assert (found[key] - tensor).norm() <= 1e-3 * tensor.norm() + 1e-6, key
