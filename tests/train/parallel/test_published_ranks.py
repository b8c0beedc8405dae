"""Published models divided over ranks: the same losses and the same checkpoints as on one."""

import json

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.dit import TokenLayout
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.sampling.trained.load import load_trained
from tests.thorough import but, chosen
from tests.train.clips import ClipStream
from tests.train.parallel.published_ranks import hashes, load_all, train_all
from tests.train.published import CASES, FSDP, case_config, drawn, run_config
from tests.train.saved import losses


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory, ranks, request):
    folder = tmp_path_factory.mktemp("ranks")
    configs = {
        name: case_config(folder / "published" / name, name)
        for name in chosen(request, "name")
        if name in CASES
    }
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(config.model_dump_json())
    ended = ranks.run(train_all, 2, str(folder))
    assert ended.codes == [0, 0], ended.errors
    return folder, configs


@pytest.fixture(scope="module")
def alone(on_two_ranks, tmp_path_factory):
    """The configuration and the run of each case on one rank; cases that differ in their layout share one."""
    _, configs = on_two_ranks
    made, found = {}, {}
    torch.set_num_threads(1)
    for name in configs:
        variant, _, lora = CASES[name]
        shared = variant, str(lora)
        if shared not in made:
            config = configs[name].model_copy(update={"parallel": ParallelConfig()})
            made[shared] = config, tmp_path_factory.mktemp("alone")
            Trainer(config, ClipStream(), made[shared][1]).run()
        found[name] = made[shared]
    return found


ALWAYS = ("wan, adapters, Ulysses",)
OFTEN = (
    "wan, adapters on 4 bits",
    "hunyuan, ring, FSDP",
    "wan, picture before grey, ring, FSDP",
    "cogvideox, FSDP",
    "cosmos, Ulysses",
)
"""Each model, and each way that its layers are divided."""


@pytest.mark.parametrize("name", but(ALWAYS, CASES, OFTEN))
def test_two_ranks_train_what_one_trains(on_two_ranks, alone, name):
    out, _ = on_two_ranks
    config, run_alone = alone[name]
    assert losses(out / name) == pytest.approx(losses(run_alone), rel=1e-4)
    started = Bundle(config).trained_weights()
    for group in ("ema", "model"):
        found, expected = (
            load_trained(str(run), torch.device("cpu"), group).bundle.trained_weights()
            for run in (out / name, run_alone)
        )
        assert set(found) == set(expected) == set(started)
        for key, weight in expected.items():
            # Of a gradient of almost nothing, Adam sees the sign alone, which is that of rounding.
            moved = (weight - started[key]).norm()
            assert (found[key] - weight).norm() <= 0.02 * moved + 1e-4, key


ADAPTERS = {"rank": 2, "targets": ["to_q", "ffn.net.0.proj"]}
STARTS = {
    "fsdp": (FSDP, None, "float32"),
    "fsdp, adapters": (FSDP, ADAPTERS, "float32"),
    "fsdp, adapters of bfloat16": (FSDP, ADAPTERS, "bfloat16"),
    "hsdp, adapters of bfloat16": ({"dp_replicate": 2, "dp_shard": 2}, ADAPTERS, "bfloat16"),
    "replicas, adapters of bfloat16": ({"dp_replicate": 4}, ADAPTERS, "bfloat16"),
    "zero": (FSDP | {"shard": "optimizer"}, None, "float32"),
    "ring, adapters": ({"ring": 4}, ADAPTERS, "float32"),
}
"""Layouts on four ranks, adapters, and the dtype of a model whose files are float32."""


@pytest.fixture(scope="module")
def started(tmp_path_factory, ranks, request):
    folder = tmp_path_factory.mktemp("starts")
    deep = drawn("wan", channels=24, num_layers=6)
    configs = {}
    for name in (name for name in chosen(request, "name") if name in STARTS):
        parallel, lora, dtype = STARTS[name]
        config = run_config(folder / "published", "wan", lora=lora, parallel=parallel)
        model = config.model.model_copy(update={"dtype": dtype})
        configs[name] = config.model_copy(update={"model": model, "dtype": dtype})
        (folder / f"{name}.json").write_text(configs[name].model_dump_json())
    deep.save_pretrained(folder / "published" / "transformer")
    ended = ranks.run(load_all, 4, str(folder))
    assert ended.codes == [0] * 4, ended.errors
    found = [json.loads((folder / f"rank{rank}.loaded").read_text()) for rank in range(4)]
    return configs, found, max(weight.nbytes for weight in deep.parameters())


@pytest.mark.parametrize("name", but(("hsdp, adapters of bfloat16",), STARTS, ("fsdp", "zero")))
def test_a_rank_reads_and_holds_its_own_part_alone(started, name):
    configs, found, largest = started
    whole = Bundle(configs[name].model_copy(update={"parallel": ParallelConfig()}))
    expected = hashes(whole)
    size = sum(weight.numel() for key, weight in whole.dit.named_parameters() if ".lora_" not in key)
    adapters = sum(weight.nbytes for weight in whole.trained_weights().values()) if configs[name].lora else 0
    encoders = sum(tensor.nbytes for tensor in (*whole.tokenizer.buffers(), *whole.text.parameters()))
    buffers = sum(buffer.nbytes for buffer in whole.dit.buffers())
    shards = 4 if name.startswith("fsdp") else 2 if name.startswith("hsdp") else 1
    for rank in (one[name] for one in found):
        assert rank["hashes"] == expected
        assert rank["read"] == 4 * rank["published"], "each value of its part once, from files of float32"
        assert rank["published"] <= 1.1 * size / shards
        # While the structure is made again for its buffers, one parameter at a time has memory.
        assert rank["peak"] <= rank["kept"] + encoders + adapters + largest + buffers + 1024


@pytest.mark.parametrize(
    ("variant", "parallel", "told"),
    [
        ("hunyuan", {"ulysses": 4}, r"parallel\.ulysses=4 must divide the model's 2 heads: take 1, 2;"),
        ("wan", {"ulysses": 4}, r"parallel\.ulysses=4 must divide the model's 2 heads: take 1, 2;"),
    ],
)
def test_heads_that_ranks_of_ulysses_do_not_divide_are_refused(tmp_path, variant, parallel, told):
    config = run_config(tmp_path, variant, parallel=parallel)
    ranks = config.parallel.ring * config.parallel.ulysses
    with pytest.raises(UsageError, match=told):
        lay_out(config.step, Ranks.of(config.parallel, World(0, ranks, torch.device("cpu"))))


def test_a_part_of_a_pack_is_refused_by_a_model_that_takes_none(tmp_path):
    bundle = Bundle(run_config(tmp_path, "wan"))
    values = torch.zeros(1, 2, 96)
    with pytest.raises(UsageError, match=r"stream\.regime"):
        bundle.dit.denoise(values, torch.zeros(1), torch.zeros(1, 2, 8), None, [(1, 1, 2)], TokenLayout())
