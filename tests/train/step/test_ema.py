import itertools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from reelweave.loader.errors import RunError
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.step.ema import Ema, decay
from tests.train.clips import ClipStream, tiny_config
from tests.train.saved import stored, tensors

CONFIG = EmaConfig(decay=0.8)


def closed_form(values_SN):
    """Of weights over the steps from 0 on, each with the product of what later steps leave of it."""
    stays = torch.tensor([decay(CONFIG, step) for step in range(1, len(values_SN))], dtype=torch.float64)
    left = torch.cat([stays.flip(0).cumprod(0).flip(0), torch.ones(1, dtype=torch.float64)])
    own = torch.cat([torch.ones(1, dtype=torch.float64), 1 - stays])
    return (left * own) @ values_SN.double()


def test_the_average_is_the_closed_form():
    values_SN = torch.randn(40, 6)
    ema = Ema(CONFIG, {"a": values_SN[0, :4].clone().view(2, 2), "b": values_SN[0, 4:]})
    for step in range(1, 40):
        ema.update_([values_SN[step, :4].view(2, 2), values_SN[step, 4:]], step)
    found = torch.cat([tensor.flatten() for tensor in ema.tensors.values()])
    torch.testing.assert_close(found.double(), closed_form(values_SN), rtol=1e-5, atol=1e-6)
    assert ema.tensors["a"].shape == (2, 2)


def test_early_steps_keep_less():
    assert decay(CONFIG, 1) == pytest.approx(2 / 11)
    assert decay(CONFIG, 100) == 0.8


def test_bfloat16_weights_are_averaged_in_float32():
    weight = torch.ones(3, dtype=torch.bfloat16)
    ema = Ema(EmaConfig(decay=0.999), {"a": weight})
    for step in range(20_000, 20_003):
        ema.update_([weight + 1], step)
    torch.testing.assert_close(ema.tensors["a"], torch.full((3,), 2 - 0.999**3))


def test_without_a_configuration_nothing_is_kept():
    ema = Ema(None, {"a": torch.ones(3)})
    ema.update_([torch.ones(3)], 1)
    assert ema.tensors == {}


def test_of_sharded_weights_a_rank_averages_its_own_shards_without_communication():
    from torch.distributed.tensor.debug import CommDebugMode

    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        values_SN = torch.randn(5, 8)
        weights = [DTensor.from_local(values_N.chunk(2)[1], mesh, [Shard(0)]) for values_N in values_SN]
        ema = Ema(CONFIG, {"a": weights[0]})
        with CommDebugMode() as traffic:
            for step, weight in enumerate(weights[1:], start=1):
                ema.update_([weight], step)
        assert traffic.get_total_counts() == 0
        assert ema.tensors["a"].placements == (Shard(0),)
        own = ema.tensors["a"].to_local()
        torch.testing.assert_close(own.double(), closed_form(values_SN)[4:], rtol=1e-5, atol=1e-6)
    finally:
        dist.destroy_process_group()


def test_a_run_averages_its_weights_and_goes_on_with_the_average(tmp_path):
    class Short(ClipStream):
        def __iter__(self):
            return itertools.islice(super().__iter__(), 6)

    config = tiny_config(8, keep_last=9).model_copy(update={"ema": CONFIG})
    Trainer(config, ClipStream(), tmp_path / "whole").run()
    with pytest.raises(RunError):
        Trainer(config, Short(), tmp_path / "cut").run()
    Trainer(config, ClipStream(), tmp_path / "cut").run()
    averaged, last = (tensors(tmp_path / "whole", group) for group in ("ema", "model"))
    assert averaged.keys() == last.keys()
    assert any(not torch.equal(averaged[name], last[name]) for name in last)
    again = tensors(tmp_path / "cut", "ema")
    assert all(torch.equal(averaged[name], again[name]) for name in averaged)


def test_a_run_averages_what_each_step_made_of_its_weights(tmp_path):
    config = tiny_config(4, every_steps=1, keep_last=9).model_copy(update={"ema": CONFIG})
    Trainer(config, ClipStream(), tmp_path).run()
    folders = sorted((tmp_path / "checkpoints").iterdir())
    steps, averages = ([stored(folder, group) for folder in folders] for group in ("model", "ema"))
    for name in steps[0]:
        for step in range(2, 5):
            stays = decay(CONFIG, step)
            expected = stays * averages[step - 2][name] + (1 - stays) * steps[step - 1][name]
            torch.testing.assert_close(averages[step - 1][name], expected)
