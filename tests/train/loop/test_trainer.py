import itertools
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import NoRoomError, RunError, UsageError
from reelweave.train.loop.processes import enter
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.bundle import Bundle
from tests.thorough import beyond, thorough
from tests.train.clips import BUCKETS, ClipStream, tiny_config
from tests.train.comparison import relative_errors
from tests.train.loop import worlds
from tests.train.saved import change_state, losses, metrics, newest, tensors


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of 12 steps that nothing happened to."""
    out = tmp_path_factory.mktemp("undisturbed")
    torch.set_num_threads(1)
    Trainer(tiny_config(12), ClipStream(), out).run()
    return out


def test_the_loss_falls(tmp_path):
    result = Trainer(tiny_config(60, every_steps=100, lr=4e-3), ClipStream(), tmp_path).run()
    assert result.steps == 60
    assert result.last_loss < 0.7 * result.first_loss


def test_the_result_sums_up_the_recorded_steps(tmp_path):
    result = Trainer(tiny_config(12), ClipStream(), tmp_path).run()
    recorded = metrics(tmp_path)
    assert result.window == 6
    assert result.first_loss == pytest.approx(sum(losses(tmp_path)[:6]) / 6)
    assert result.last_loss == pytest.approx(sum(losses(tmp_path)[-6:]) / 6)
    assert result.samples_per_s == pytest.approx(48 / sum(line["step_s"] for line in recorded))
    assert result.checkpoint == str(tmp_path / "checkpoints" / "step-000012")
    # 3 x 4 x 4 and 2 x 4 x 6 tokens of video; a start token and 4 words, or the start token alone.
    video = sum(4 * math.prod(grid) for grid in ((3, 4, 4), (2, 4, 6)))
    pair = recorded[0]["tokens"] + recorded[1]["tokens"]
    assert video + 8 <= pair <= video + 8 * 5


class Ends(ClipStream):
    """A stream of two steps."""

    def __iter__(self):
        return itertools.islice(super().__iter__(), 2)


def test_a_stream_that_ends_early_says_how_many_steps_it_has(tmp_path):
    with pytest.raises(
        RunError, match=r"before step 3 of schedule\.total_steps=3: set schedule\.total_steps=2,"
    ):
        Trainer(tiny_config(3), Ends(), tmp_path).run()


class FillsTheDisk(ClipStream):
    """A stream behind whose first step the disk of the losses is full."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def microbatch(self, step, slot=0):
        if step == 1:
            (self.out / "losses.jsonl").unlink(missing_ok=True)
            (self.out / "losses.jsonl").symlink_to("/dev/full")
        return super().microbatch(step, slot)


def test_a_full_disk_under_the_log_is_told_in_words(tmp_path):
    """A line of a log ended a run with a traceback that called itself a bug."""
    config = tiny_config(3)
    config = config.model_copy(update={"log": config.log.model_copy(update={"every_steps": 1})})
    with pytest.raises(NoRoomError, match="cannot be written: No space left on device; make room"):
        Trainer(config, FillsTheDisk(tmp_path), tmp_path).run()


class LosesTheFolder(FillsTheDisk):
    """A stream behind whose first step somebody removes the folder of the run."""

    def microbatch(self, step, slot=0):
        if step == 1:
            shutil.rmtree(self.out)
        return ClipStream.microbatch(self, step, slot)


def test_a_folder_that_is_removed_under_the_run_is_told_in_words(tmp_path):
    config = tiny_config(3)
    config = config.model_copy(update={"log": config.log.model_copy(update={"every_steps": 1})})
    out = tmp_path / "run"
    with pytest.raises(
        RunError, match=r"metrics\.jsonl cannot be written: the folder .*run was removed, moved"
    ):
        Trainer(config, LosesTheFolder(out), out).run()


class ReadsNothing(ClipStream):
    """A stream whose file cannot be read."""

    def microbatch(self, step, slot=0):
        with Path("/proc/self/mem").open("rb") as file:
            file.read(1)


def test_a_file_that_cannot_be_read_is_not_said_to_be_unwritable(tmp_path):
    """EACCES and EIO do not say whether a file was read: "cannot be written" sent people to the wrong folder."""
    with pytest.raises(
        RunError, match=r"file of the run.* cannot be read or written: Input/output error; see to"
    ):
        Trainer(tiny_config(3), ReadsNothing(), tmp_path).run()


def test_equal_seeds_give_equal_losses(tmp_path, undisturbed):
    Trainer(tiny_config(12), ClipStream(), tmp_path).run()
    assert losses(tmp_path) == losses(undisturbed)


@pytest.mark.parametrize(
    "sizes", [(1, 3), pytest.param((2, 2), marks=thorough), pytest.param((1, 1, 1, 1), marks=thorough)]
)
def test_a_step_in_several_microbatches_is_the_same_step(tmp_path, undisturbed, sizes):
    result = Trainer(tiny_config(12), ClipStream(sizes=sizes), tmp_path).run()
    assert result.steps == 12
    assert losses(tmp_path) == pytest.approx(losses(undisturbed), rel=1e-4)
    assert [line["tokens"] for line in metrics(tmp_path)] == [line["tokens"] for line in metrics(undisturbed)]
    assert [line["samples"] for line in metrics(tmp_path)] == [4] * 12


def test_with_the_denominator_of_the_epoch_a_small_step_counts_less(tmp_path):
    def momentum(denominator: str, mean_samples: float) -> torch.Tensor:
        out = tmp_path / f"{denominator}{mean_samples}"
        stream = ClipStream()
        stream.mean_samples = mean_samples
        config = tiny_config(total_steps=1).model_copy(update={"denominator": denominator})
        Trainer(config, stream, out).run()
        saved = tensors(out, "optimizer")
        return torch.cat([saved[name].flatten() for name in sorted(saved) if name.endswith(".exp_avg")])

    plain = momentum("step", 4.0)
    assert plain.abs().max() > 0
    assert torch.equal(momentum("step", 8.0), plain)
    assert torch.equal(momentum("epoch", 4.0), plain)
    changed = momentum("epoch", 8.0)
    assert not torch.equal(changed, plain)
    torch.testing.assert_close(changed, plain / 2)


def test_another_seed_gives_other_losses(tmp_path, undisturbed):
    Trainer(tiny_config(12).model_copy(update={"seed": 1}), ClipStream(), tmp_path).run()
    assert losses(tmp_path) != losses(undisturbed)


def test_training_leaves_the_callers_random_numbers_alone():
    state = torch.random.get_rng_state()
    Bundle(tiny_config())
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_killed_run_resumes_to_the_same_end(ranks, tmp_path, undisturbed):
    ended = ranks.run(worlds.train_clips, 1, str(tmp_path), 12, "kill", 0, 10)
    assert ended.codes == [-9], ended.errors
    assert len(metrics(tmp_path)) >= 9
    assert newest(tmp_path).name in ("step-000004", "step-000008")

    ended = ranks.run(worlds.train_clips, 1, str(tmp_path), 12)
    assert ended.codes == [0], ended.errors
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 13))
    assert losses(tmp_path) == pytest.approx(losses(undisturbed), rel=1e-6)
    resumed = tensors(tmp_path)
    for name, weight in tensors(undisturbed).items():
        torch.testing.assert_close(resumed[name], weight, rtol=0, atol=1e-6)


def test_a_finished_run_has_nothing_left_to_do(tmp_path, capsys):
    first = Trainer(tiny_config(), ClipStream(), tmp_path).run()
    capsys.readouterr()
    assert Trainer(tiny_config(2), ClipStream(), tmp_path).run() == first
    assert f"nothing to train: the last checkpoint has {first.steps} steps" in capsys.readouterr().err


def test_total_steps_and_cadences_may_change_on_resume(tmp_path):
    Trainer(tiny_config(4), ClipStream(), tmp_path).run()
    result = Trainer(tiny_config(6, every_steps=1, keep_last=9), ClipStream(), tmp_path).run()
    assert result.steps == 6
    assert len(metrics(tmp_path)) == 6


def test_resuming_with_another_configuration_names_the_key(tmp_path):
    Trainer(tiny_config(4), ClipStream(), tmp_path).run()
    with pytest.raises(UsageError, match=r"optimizer\.lr was 0\.002 and is 0\.01 now"):
        Trainer(tiny_config(4, lr=0.01), ClipStream(), tmp_path).run()


def test_a_checkpoint_from_before_a_key_came_goes_on(tmp_path):
    Trainer(tiny_config(4), ClipStream(), tmp_path).run()

    def older(values: dict) -> None:
        del values["config"]["ema"]
        values["config"]["objective"] = {"time_mean": 0.0, "time_std": 1.0, "caption_dropout": 0.1}

    change_state(tmp_path, older)
    assert Trainer(tiny_config(6), ClipStream(), tmp_path).run().steps == 6


class Poisoned(ClipStream):
    """A clip stream whose second sample is not a number in some steps."""

    def __init__(self, steps: set[int]) -> None:
        super().__init__()
        self.steps = steps

    def microbatch(self, step, slot=0):
        batch = super().microbatch(step, slot)
        video = batch.video_BCTHW.float() / 127.5 - 1
        if step in self.steps:
            video[1] = torch.nan
        return replace(batch, video_BCTHW=video)


def test_a_step_that_is_not_finite_is_skipped_and_recorded(tmp_path):
    Trainer(tiny_config(4), Poisoned({1, 2}), tmp_path).run()
    recorded = metrics(tmp_path)
    assert [line["skipped"] for line in recorded] == [False, True, True, False]
    assert recorded[1]["loss"] is None
    assert all(weight.isfinite().all() for weight in tensors(tmp_path).values())


def test_too_many_nonfinite_steps_in_a_row_stop_the_run_and_name_the_sample(tmp_path):
    config = tiny_config(20).model_copy(update={"max_nonfinite_steps": 3})
    with pytest.raises(RunError, match=r"up to step 5 \(samples on rank 0: clip4\)"):
        Trainer(config, Poisoned({2, 3, 4}), tmp_path).run()


def test_a_stream_that_ends_early_is_an_error(tmp_path):
    class Short(ClipStream):
        def __iter__(self):
            return itertools.islice(super().__iter__(), 3)

    with pytest.raises(RunError, match="before step 4"):
        Trainer(tiny_config(), Short(), tmp_path).run()


def test_ranks_that_all_open_the_whole_stream_are_told(tmp_path):
    class Unshared(ClipStream):
        def microbatch(self, step, slot=0):
            return replace(super().microbatch(step, slot), weight=0.5)

    with pytest.raises(UsageError, match=r"add up to 0\.5"):
        Trainer(tiny_config(), Unshared(), tmp_path).run()


def test_bfloat16_follows_float32(tmp_path, undisturbed):
    Trainer(tiny_config(12).model_copy(update={"dtype": "bfloat16"}), ClipStream(), tmp_path).run()
    assert losses(tmp_path) == pytest.approx(losses(undisturbed), rel=0.03)
    assert {weight.dtype for weight in tensors(tmp_path).values()} == {torch.float32}


def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Trainer(tiny_config(4, tensorboard=True), ClipStream(), tmp_path).run()
    Trainer(tiny_config(6, tensorboard=True), ClipStream(), tmp_path).run()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    shown = events.Scalars("train/loss")
    assert [event.step for event in shown] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in shown] == pytest.approx(losses(tmp_path))


def test_the_console_is_stderr(tmp_path, capsys):
    Trainer(tiny_config(12), ClipStream(), tmp_path).run()
    told = capsys.readouterr()
    assert told.out == ""
    assert "step 10/12" in told.err


def test_a_shape_the_model_cannot_cut_is_refused(tmp_path):
    config = tiny_config()
    config = config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"frames": 3})})
    assert BUCKETS[0].frames == 5
    with pytest.raises(UsageError, match="5 frames"):
        Trainer(config, ClipStream(), tmp_path).run()


# A step's samples have equally many tokens.
@pytest.mark.parametrize("function", beyond(1, [worlds.uneven, worlds.train_clips, worlds.by_tokens]))
def test_ranks_share_a_step_without_changing_it(tmp_path, undisturbed, ranks, function):
    ended = ranks.run(function, 2, str(tmp_path), 12)
    assert ended.codes == [0, 0], ended.errors
    assert losses(tmp_path) == pytest.approx(losses(undisturbed), rel=1e-5)
    for key in ("grad_norm", "tokens", "samples"):
        together, alone = ([line[key] for line in metrics(out)] for out in (tmp_path, undisturbed))
        assert together == pytest.approx(alone, rel=1e-5)
    together, alone = (
        {name: moment for name, moment in tensors(out, "optimizer").items() if name.endswith(".exp_avg")}
        for out in (tmp_path, undisturbed)
    )
    errors = relative_errors(together, alone)
    assert {name: error for name, error in errors.items() if not error <= 1e-5} == {}


def test_a_signal_before_the_first_step_is_obeyed_behind_it(tmp_path):
    with enter(tiny_config()) as processes:
        os.kill(os.getpid(), signal.SIGTERM)
        result = Trainer(tiny_config(), ClipStream(), tmp_path).run_on(processes)
    assert (result.steps, result.stopped) == (1, True)
