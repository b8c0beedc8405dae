"""What a run says of its captions, of its learning rate, and of keys that do nothing."""

from pathlib import Path

import pytest

from reelweave.loader.settings import unread_keys
from reelweave.train.config.objective import DDPMConfig, FlowConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.text import HashedTextConfig
from reelweave.train.loop.logs.records import read_metrics
from reelweave.train.loop.trainer import Trainer
from reelweave.train.loop.validation import Validation
from reelweave.train.loop.validation_config import ValidationConfig
from tests.train.clips import ClipStream, tiny_config


def test_captions_longer_than_the_encoder_reads_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    text = HashedTextConfig(vocabulary=64, width=16, max_text_tokens=3)
    config = tiny_config(4).model_copy(update={"text": text})
    asked = ValidationConfig(
        prompts=("a wave", "a wave going on"), height=16, width=16, frames=5, guidance=1.0, every_steps=100
    )
    validation = Validation(asked, lambda *_: b"")
    Trainer(config, ClipStream(), tmp_path / "run", validation=validation).run()
    said = capsys.readouterr().err
    # "a wave going N" has four words; four captions in each of four steps.
    assert "step 1: 4 of 4 captions so far have more than text.max_text_tokens = 3 tokens" in said
    assert "step 3: 12 of 12 captions so far" in said
    assert said.count("captions so far") == 2
    assert "validation: 1 of its captions have more than text.max_text_tokens = 3 tokens" in caplog.text
    Trainer(tiny_config(4), ClipStream(), tmp_path / "other").run()
    assert "captions so far" not in capsys.readouterr().err


def test_a_warm_up_longer_than_the_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config(2, lr=2e-3)
    for warmup_steps, lines in ((4, 1), (2, 0)):
        schedule = config.schedule.model_copy(update={"warmup_steps": warmup_steps})
        out = tmp_path / str(warmup_steps)
        Trainer(config.model_copy(update={"schedule": schedule}), ClipStream(), out).run()
        assert capsys.readouterr().err.count("schedule.warmup_steps=4 is above total_steps=2") == lines
        assert list(read_metrics(out, 2))[-1].lr == pytest.approx(2e-3 * 2 / warmup_steps)


def test_a_longer_schedule_says_how_the_learning_rate_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cosine of 8 steps has ended near its least rate; stretched to 16 steps it is at half of the way."""
    Trainer(tiny_config(8), ClipStream(), tmp_path / "run").run()
    Trainer(tiny_config(16), ClipStream(), tmp_path / "run").run()
    rates = [metrics.lr for metrics in read_metrics(tmp_path / "run", 16)]
    assert rates[8] > 2 * rates[7]
    assert "schedule.total_steps was 8 and is 16 now" in caplog.text
    assert f"it was {rates[7]:.3g} in step 8 and is {rates[8]:.3g} in the next one" in caplog.text
    caplog.clear()
    constant = {"kind": "constant", "warmup_steps": 0}
    for steps in (2, 4):
        config = tiny_config(steps)
        schedule = config.schedule.model_copy(update=constant)
        Trainer(config.model_copy(update={"schedule": schedule}), ClipStream(), tmp_path / "flat").run()
    assert "schedule.total_steps" not in caplog.text


@pytest.mark.parametrize(
    ("update", "lines"),
    [
        (
            {"objective": FlowConfig(time="uniform", time_mean=1.5)},
            ["objective.time_mean=1.5 is not read: it is for time logit_normal, and time is uniform"],
        ),
        ({"objective": FlowConfig(time="mode", time_std=2.0, mode_scale=1.0)}, ["objective.time_std=2.0"]),
        (
            {"objective": DDPMConfig(schedule="cosine", beta_end=0.5)},
            ["objective.beta_end=0.5 is not read: it is for schedule linear or scaled_linear, and"],
        ),
        ({"objective": FlowConfig(time_mean=1.5, time_std=2.0)}, []),
        (
            {"schedule": {"kind": "constant", "min_lr_ratio": 0.5, "total_steps": 1}},
            ["schedule.min_lr_ratio=0.5"],
        ),
        ({"parallel": {"activation_memory_budget": 0.1}}, ["parallel.activation_memory_budget=0.1"]),
        (
            {"parallel": {"pp_schedule": "gpipe", "reduce_gradients": "step"}},
            [
                "parallel.pp_schedule=gpipe is not read: it is for pp other than 1, and pp is 1",
                "parallel.reduce_gradients=step is not read",
            ],
        ),
        (
            {"cascade": {"memory_gib": 2.0, "lookahead": 3}},
            [
                "cascade.memory_gib=2.0 is not read: it is for parallel.schedule cascade, and parallel.schedule is",
                "cascade.lookahead=3 is not read",
            ],
        ),
        (
            {"recalibrate": {"every_steps": 7}},
            ["recalibrate.every_steps=7 is above schedule.total_steps=1: it never takes place"],
        ),
    ],
)
def test_keys_that_do_nothing_are_said(
    update: dict[str, object], lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were taken without a word, and the run went on as if they were not there."""
    config = TrainConfig.model_validate(tiny_config(1).model_dump() | update)
    Trainer(config, ClipStream(), tmp_path / "run").run()
    printed = capsys.readouterr().err
    assert [line in printed for line in lines] == [True] * len(lines)
    assert printed.count("is not read") + printed.count("never takes place") == len(lines)


def test_gathering_in_fp8_is_for_shards_of_weights() -> None:
    config = TrainConfig.model_validate(
        tiny_config(1).model_dump() | {"dtype": "bfloat16", "fp8": {"fsdp_all_gather": True}}
    )
    assert list(unread_keys(config)) == [
        "fp8.fsdp_all_gather=True is not read: it is for parallel.dp_shard other than 1, and parallel.dp_shard is 1"
    ]


def test_a_validation_that_never_comes_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for every_steps in (2, 1):
        asked = ValidationConfig(
            prompts=("a wave",), height=16, width=16, frames=5, steps=1, guidance=1.0, every_steps=every_steps
        )
        out = tmp_path / str(every_steps)
        Trainer(tiny_config(1), ClipStream(), out, validation=Validation(asked, lambda *_: b"")).run()
        line = "validation.every_steps=2 is above schedule.total_steps=1: it never takes place"
        assert (line in capsys.readouterr().err) == (every_steps == 2)
