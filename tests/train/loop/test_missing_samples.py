"""Training on a dataset whose rarest shape is one damaged clip."""

import json
from pathlib import Path

from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.train.loop import worlds
from tests.train.ranks import Ranks
from tests.train.saved import losses


def test_no_rank_ends_at_a_damaged_sample_alone_in_its_bucket(tmp_path: Path, ranks: Ranks) -> None:
    clip = write_video(tmp_path / "clip.mp4", (6,), size=(80, 64)).read_bytes()
    samples = [make_sample(f"key{number:02}", clip, 6, (80, 64)) for number in range(8)]
    samples.append(make_sample("tall", b"not a video\n" * 400, 9, (64, 80)))
    dataset, out = write(tmp_path / "set", samples), tmp_path / "run"
    ended = ranks.run(worlds.train_dataset, 2, str(dataset), str(out), 4, 1, None)
    assert ended.codes == [0, 0], ended.errors
    assert len(losses(out)) == 4
    said = [json.loads(line) for path in out.glob("bad_samples*.jsonl") for line in path.open()]
    assert {one["key"] for one in said} == {"tall"}
    assert "of 4 steps lacked samples that could not be read and that no other replaced" in ended.errors[0]
    assert "lacked samples" not in ended.errors[1]


def test_a_run_in_which_not_one_sample_could_be_read_fails_behind_its_checkpoint(
    tmp_path: Path, ranks: Ranks
) -> None:
    damaged = [make_sample(f"key{number}", b"not a video\n" * 400, 6, (80, 64)) for number in range(4)]
    dataset, out = write(tmp_path / "set", damaged), tmp_path / "run"
    ended = ranks.run(worlds.train_dataset, 2, str(dataset), str(out), 2, 1, None)
    assert ended.codes == [1, 1], ended.errors
    assert "2 of 2 steps lacked samples" in ended.errors[0]
    assert "nothing was trained: not one sample of 2 steps could be read" in ended.errors[0]
    assert list((out / "checkpoints").glob("*2*"))
    assert len(losses(out)) == 2
