"""Losses and videos before the first step: of the model as it is, or of the weights that a run begins with."""

import json

from reelweave.pipelines.report.run.numbers import read_runs
from reelweave.pipelines.report.run.page import summary
from reelweave.train.loop.evaluation import HeldOutEvaluation
from reelweave.train.loop.trainer import Trainer
from reelweave.train.loop.validation import Validation
from tests.train.clips import ClipStream, tiny_config
from tests.train.loop.stages.stage_runs import staged
from tests.train.loop.validation_runs import raw, validation_config
from tests.train.saved import metrics


def held_out(every_steps=2, before_first_step=True):
    batches = lambda: [ClipStream().microbatch(step) for step in (5, 6)]  # noqa: E731
    return HeldOutEvaluation(every_steps, batches, before_first_step)


def videos(every_steps=2, **changes):
    return Validation(validation_config(every_steps=every_steps, before_first_step=True, **changes), raw)


def held_out_losses(out):
    lines = [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]
    return {line["step"]: line["whole"]["loss"] for line in lines if line["of"] == "held_out"}


def steps_of_videos(out):
    return sorted(int(path.name[5:]) for path in (out / "validation").glob("step-*"))


def test_a_baseline_changes_no_bit_and_comes_once(tmp_path, capsys):
    out, plain = tmp_path / "run", tmp_path / "plain"
    Trainer(tiny_config(4, every_steps=2), ClipStream(), plain).run()
    for steps in (2, 4):  # the second run resumes
        Trainer(tiny_config(steps, every_steps=2), ClipStream(), out, held_out(), validation=videos()).run()
        said = capsys.readouterr().err
        assert (
            said.count("step 0: held-out loss ") == said.count("step 0: 3 validation videos") == (steps == 2)
        )
    assert [line["loss"] for line in metrics(out)[:2]] == [line["loss"] for line in metrics(plain)[:2]]
    assert list(held_out_losses(out)) == [0, 2, 4]
    assert steps_of_videos(out) == [0, 2, 4]
    numbers = read_runs([out]).runs[0]
    assert numbers.samples.shown == [0, 2, 4]
    assert [step for step, _ in numbers.losses.held_out.whole["all"].points("loss")] == [0, 2, 4]
    assert numbers.losses.unreadable == 0
    shown = dict(summary([numbers]))
    assert shown["held-out before step 1"] == [f"{held_out_losses(out)[0]:.4g}"]


def test_a_next_stage_begins_with_what_the_one_before_ended_with(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    Trainer(staged(steps=2), ClipStream(), first, held_out(), validation=videos()).run()
    Trainer(staged(first, steps=1), ClipStream(), second, held_out(5), validation=videos(5)).run()
    assert held_out_losses(second) == {0: held_out_losses(first)[2]}
    for path in (first / "validation" / "step-000002").glob("*.mp4"):
        assert path.read_bytes() == (second / "validation" / "step-000000" / path.name).read_bytes()


def test_what_takes_place_before_the_first_step_alone_is_told(tmp_path, capsys):
    Trainer(tiny_config(1), ClipStream(), tmp_path, held_out(5)).run()
    assert (
        "held_out.every_steps=5 is above schedule.total_steps=1: it takes place before the first step alone"
        in capsys.readouterr().err
    )
    assert list(held_out_losses(tmp_path)) == [0]
