"""Short runs that begin with another one."""

import torch

from reelweave.train.config.checkpoint import StartFromConfig
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.optimizer import EmaConfig, ScheduleConfig
from reelweave.train.loop.trainer import Trainer
from tests.train.clips import ClipStream, tiny_config
from tests.train.saved import tensors

N, M = 4, 3


class From(ClipStream):
    """The clips from a step on, which a stage cannot state of a stream of its own."""

    def __init__(self, first, *arguments):
        super().__init__(*arguments)
        self.first_step = first

    def microbatch(self, step, slot=0):
        return super().microbatch(step + self.first_step, slot)


def staged(source="", steps=M, ema=None, kind="constant", **changes):
    """A run of a few steps at a constant learning rate, of some source."""
    start = changes.pop("start_from", {"source": str(source)} if source else None)
    config = tiny_config(steps, every_steps=100)
    values = {
        "schedule": ScheduleConfig(kind=kind, total_steps=steps, warmup_steps=0),
        "ema": ema and EmaConfig(decay=ema),
        "start_from": start and StartFromConfig(**start),
        "denominator": "step",
    }
    return config.model_copy(update=values | changes)


def run(config, out, stream=None):
    Trainer(config, stream or ClipStream(), out).run()
    return out


def begins(source, tmp_path, name="next", **changes):
    """The weights that a run begins with: those behind a step that changes next to nothing."""
    small = tiny_config(lr=1e-12).optimizer.model_copy(update={"weight_decay": 0.0})
    return tensors(run(staged(source, steps=1, optimizer=small, **changes), tmp_path / name))


def same(weights, expected, names=None):
    for name in names or expected:
        torch.testing.assert_close(weights[name], expected[name], rtol=0, atol=1e-9)


def model(**changes):
    return tiny_config().model.model_copy(update=changes)


def adapters(base, **changes):
    return LoraConfig(**{"rank": 2, "alpha": 2.0, "checkpoint": str(base)} | changes)
