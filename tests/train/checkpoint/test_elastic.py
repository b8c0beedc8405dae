"""What may happen to a run on the way, and that its end is that of an undisturbed one."""

import json
import re
from pathlib import Path

import pytest
import torch

from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from reelweave.train.checkpoint.folder import latest
from reelweave.train.loop.interrupt import EXIT_STOPPED
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.thorough import beyond, thorough
from tests.train.distributed import torchrun
from tests.train.loop import worlds
from tests.train.ranks import Ranks
from tests.train.saved import losses, metrics, newest, tensors

STEPS = 12
SAMPLES = 31


def same_end(out: Path, other: Path, tolerance: float = 0.0, steps: int = STEPS) -> None:
    """The weights and the optimizer's state are equal, and every step was recorded once."""
    for group in ("model", "optimizer"):
        found, expected = tensors(out, group), tensors(other, group)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance, msg=name)
    assert [line["step"] for line in metrics(out)] == list(range(1, steps + 1))
    assert losses(out) == pytest.approx(losses(other), rel=tolerance)
    # Lines on ranks follow each other without a gap and without a step twice.
    lines = [json.loads(line) for line in (out / "ranks.jsonl").read_text().splitlines()]
    ends = [0, *(line["step"] for line in lines)]
    assert [line["step"] - line["steps"] for line in lines] == ends[:-1]
    assert ends[-1] == len(losses(out))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, ranks: Ranks) -> Path:
    """Two ranks that nothing happens to."""
    out = tmp_path_factory.mktemp("undisturbed")
    ended = ranks.run(worlds.train_clips, 2, str(out), STEPS)
    assert ended.codes == [0, 0], ended.errors
    return out


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("clips")
    clips = [
        (write_video(folder / f"{frames}.mp4", (frames,), size=size).read_bytes(), frames, size)
        for frames, size in ((6, (80, 64)), (10, (80, 64)), (7, (64, 80)))
    ]
    return str(write(folder / "set", [make_sample(f"key{n:02}", *clips[n % 3]) for n in range(SAMPLES)]))


def seen(out: Path) -> list[list]:
    """Step, key and pass of every sample that was trained on."""
    return sorted(json.loads(line) for path in out.glob("seen-by-*") for line in path.open())


def test_four_ranks_then_two_then_eight_train_as_four_do(tmp_path: Path, ranks: Ranks, dataset: str) -> None:
    whole, changing, steps = tmp_path / "whole", tmp_path / "changing", 8
    ended = ranks.run(worlds.train_dataset, 4, dataset, str(whole), steps, 2, None)
    assert ended.codes == [0] * 4, ended.errors
    for size, microbatches, stop_at, code in (
        (4, 2, 3, EXIT_STOPPED),
        (2, 4, 6, EXIT_STOPPED),
        (8, 1, None, 0),
    ):
        ended = ranks.run(worlds.train_dataset, size, dataset, str(changing), steps, microbatches, stop_at)
        assert ended.codes == [code] * size, ended.errors
        assert latest(open_storage(changing / "checkpoints")) == (stop_at or steps)
        assert f"-of-0000{size}" in sorted((newest(changing) / "model").iterdir())[0].name
    assert seen(changing) == seen(whole)
    drawn = [tuple(one[1:]) for one in seen(whole)]
    assert len(set(drawn)) == len(drawn) > 2 * SAMPLES  # each once an epoch, over more than two epochs
    same_end(changing, whole, tolerance=1e-5, steps=steps)


def test_a_rank_that_is_killed_is_named_and_the_next_run_ends_as_if_nothing_was(
    tmp_path: Path, ranks: Ranks, undisturbed: Path
) -> None:
    for victim, step in ((1, 2), (1, 5), (0, 7)):
        ended = ranks.run(worlds.train_clips, 2, str(tmp_path), STEPS, "kill", victim, step, 0.015)
        assert ended.codes[victim] == -9
        assert ended.codes[1 - victim] == 1
        assert f"RunError: rank {victim} " in ended.errors[1 - victim], ended.errors
    with (tmp_path / "ranks.jsonl").open("a") as file:
        file.write('{"step": 10, "steps": 6}\n{"st')  # of steps that no checkpoint has
    ended = ranks.run(worlds.train_clips, 2, str(tmp_path), STEPS)
    assert ended.codes == [0, 0], ended.errors
    same_end(tmp_path, undisturbed)


@thorough
def test_a_rank_that_hangs_is_named_and_ends_the_run(tmp_path: Path, ranks: Ranks) -> None:
    arguments = (str(tmp_path), STEPS, "stop", 1, 3)
    ended = ranks.run(worlds.train_clips, 2, *arguments, grace_s=1.0)
    assert ended.codes == [1, -9]
    assert "reelweave: rank 1 was lost (no sign of life for 4 s)" in ended.errors[0]


@pytest.mark.parametrize(("sent", "rank"), beyond(1, [("usr1", 1), ("term", 0)]))
def test_a_signal_to_any_rank_saves_and_ends_all_behind_the_same_step(
    tmp_path: Path, ranks: Ranks, undisturbed: Path, sent: str, rank: int
) -> None:
    ended = ranks.run(worlds.train_clips, 2, str(tmp_path), STEPS, sent, rank, 6)
    assert ended.codes == [EXIT_STOPPED, EXIT_STOPPED], ended.errors
    assert newest(tmp_path).name == "step-000007"
    assert "asked to stop: saved behind step 7" in ended.errors[0]
    ended = ranks.run(worlds.train_clips, 2, str(tmp_path), STEPS)
    assert ended.codes == [0, 0], ended.errors
    same_end(tmp_path, undisturbed)


@thorough
def test_torchruns_agent_starts_again_by_itself_from_the_last_checkpoint(
    tmp_path: Path, ranks: Ranks, undisturbed: Path
) -> None:
    ended = ranks.run(torchrun.launch, 1, str(tmp_path), STEPS)
    assert ended.codes == [0], ended.errors
    assert re.search(r"steps [48] to 12", ended.errors[0]), ended.errors[0]
    same_end(tmp_path, undisturbed)


def test_the_command_ends_with_its_own_status_where_it_was_asked_to_stop(
    tmp_path: Path, ranks: Ranks, dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "dataset": dataset,
        "out": "elsewhere",
        "checkpoints": str(tmp_path / "kept elsewhere"),
        "stream": {
            "buckets": {
                "frames": [5], "sizes": [[16, 24]], "max_text_tokens": 9, "memory_tokens": 300,
                "compression": {"frames": 2, "height": 4, "width": 4, "causal": True},
            },
        },
        "train": worlds.tiny_config(10_000).model_dump(mode="json"),
    }  # fmt: skip
    (tmp_path / "train.yaml").write_text(json.dumps(config))
    out = str(tmp_path / "run")
    words = ["train", "--config", str(tmp_path / "train.yaml"), "--set", f"out={out}"]
    ended = ranks.run(worlds.command, 1, words, out, "term", "metrics.jsonl")
    assert ended.codes == [75], ended.errors
    kept = latest(open_storage(tmp_path / "kept elsewhere"))
    assert kept == len(metrics(tmp_path / "run"))
    # A configuration that is refused leaves that of the run, with which the same command goes on.
    own = (tmp_path / "run" / "train.yaml").read_bytes()
    assert main([*words, "--set", "train.optimizer.lr=1"]) == 2
    assert "optimizer.lr" in capsys.readouterr().err
    assert (tmp_path / "run" / "train.yaml").read_bytes() == own
