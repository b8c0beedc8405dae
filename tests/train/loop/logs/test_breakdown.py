"""Losses by quantile of the time and by bucket, of training and of clips that are held out."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from reelweave.train.distributed.world import World
from reelweave.train.loop.evaluation import HeldOutEvaluation
from reelweave.train.loop.logs.breakdown import LossPart, LossRows, break_down
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.bundle import Bundle
from reelweave.train.step.losses import losses
from tests.train.clips import BUCKETS, ClipStream, tiny_config

ALONE = World(0, 1, torch.device("cpu"))


def lines(out):
    return [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]


def test_rows_are_averaged_in_both_ways():
    found = break_down(
        np.array([[9, 8, 8, 0.1, 1.0], [9, 8, 8, 0.9, 2.0], [17, 8, 8, 1.0, 6.0], [9, 8, 8, 0.0, 3.0]])
    )
    assert found.whole == LossPart(3.0, 4)
    assert found.by_quantile == {"0.125": LossPart(2.0, 2), "0.875": LossPart(4.0, 2)}
    assert list(found.by_bucket.items()) == [("9x8x8", LossPart(2.0, 3)), ("17x8x8", LossPart(6.0, 1))]


def test_a_loss_that_is_not_finite_spoils_only_its_own_parts():
    found = break_down(np.array([[1, 8, 8, 0.1, math.nan], [9, 8, 8, 0.9, 2.0]]))
    assert found.whole == LossPart(None, 2)
    assert found.by_bucket == {"1x8x8": LossPart(None, 1), "9x8x8": LossPart(2.0, 1)}


def test_no_rows_are_no_loss():
    assert LossRows().take(ALONE).whole == LossPart(None, 0)


def test_fillers_are_left_out():
    config, batch, rows = tiny_config(), ClipStream().microbatch(0), LossRows()
    found = losses(Bundle(config), config, batch, ALONE.device)
    rows.add(batch, found)
    rows.add(replace(batch, weight=0.0), found)
    assert rows.take(ALONE).whole.samples == 4
    assert rows.take(ALONE).whole.samples == 0


def test_a_run_breaks_its_loss_down_at_each_line_of_the_console(tmp_path):
    config = tiny_config(6)
    config = config.model_copy(update={"log": config.log.model_copy(update={"every_steps": 3})})
    Trainer(config, ClipStream(), tmp_path).run()
    steps = [json.loads(line)["loss"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, second = lines(tmp_path)
    assert (first["step"], second["step"], second["of"]) == (3, 6, "train")
    for line, own in ((first, steps[:3]), (second, steps[3:])):
        assert line["whole"] == {"loss": pytest.approx(sum(own) / 3, rel=1e-5), "samples": 12}
        for parts in (line["by_quantile"], line["by_bucket"]):
            assert sum(part["samples"] for part in parts.values()) == 12
    short, long = (str(bucket) for bucket in sorted(BUCKETS))
    assert {name: part["samples"] for name, part in first["by_bucket"].items()} == {short: 4, long: 8}
    assert first["by_bucket"][short]["loss"] == pytest.approx(steps[1], rel=1e-5)


def held_out(every_steps):
    def batches():
        return [replace(ClipStream(sizes=(2,)).microbatch(step), weight=0.5) for step in (100, 101)]

    return HeldOutEvaluation(every_steps, batches)


def test_held_out_losses_change_with_the_model_alone():
    config = tiny_config()
    bundle = Bundle(config)
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    first, again = (held_out(1).losses(bundle, config, ALONE) for _ in range(2))
    assert first == again
    assert {name: part.samples for name, part in first.by_quantile.items()} == dict.fromkeys(
        ("0.125", "0.375", "0.625", "0.875"), 4
    )
    assert len({part.loss for part in first.by_quantile.values()}) == 4
    assert first.whole.samples == 16


def test_held_out_losses_are_recorded_fall_and_leave_training_alone(tmp_path, capsys):
    config = tiny_config(30, every_steps=100, lr=4e-3)
    looked = Trainer(config, ClipStream(), tmp_path / "looked", held_out(10)).run()
    alone = Trainer(config, ClipStream(), tmp_path / "alone").run()
    assert looked.last_loss == alone.last_loss
    found = [line for line in lines(tmp_path / "looked") if line["of"] == "held_out"]
    assert [line["step"] for line in found] == [10, 20, 30]
    assert found[-1]["whole"]["loss"] < 0.9 * found[0]["whole"]["loss"]
    assert (
        f"held-out loss {found[0]['whole']['loss']:.4f} over 4 clips, each at 4 times"
        in capsys.readouterr().err
    )


def test_after_a_resume_no_line_stands_twice(tmp_path):
    config = tiny_config(4).model_copy(
        update={"log": tiny_config().log.model_copy(update={"every_steps": 1})}
    )
    Trainer(config, ClipStream(), tmp_path).run()
    with (tmp_path / "losses.jsonl").open("a") as file:
        file.write('{"step": 5, "of": "train"}\n{"st')
    longer = config.model_copy(update={"schedule": config.schedule.model_copy(update={"total_steps": 6})})
    Trainer(longer, ClipStream(), tmp_path).run()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_tensorboard_shows_the_parts(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny_config(2, tensorboard=True)
    config = config.model_copy(update={"log": config.log.model_copy(update={"every_steps": 2})})
    Trainer(config, ClipStream(), tmp_path).run()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert f"losses_train/bucket/{BUCKETS[0]}" in events.Tags()["scalars"]
    [shown] = events.Scalars("losses_train/loss")
    assert shown.value == pytest.approx(lines(tmp_path)[0]["whole"]["loss"])
