"""Ranks of a model-parallel group that read together, as real processes."""

import gc
import json
import shutil
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.read.decode import decode
from reelweave.loader.read.share import DecodedSlice, LoadedSample, Share, divide
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.read.share_device import OWNERS, exchange_on_device
from tests.loader.read.share_worker import SCENARIOS, SETTINGS, TAKEN, read, run_all
from tests.loader.stream_clips import config, digest, make_sample, write
from tests.train.ranks import Ranks


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, folder: Path, samples: list[Sample]) -> Path:
    out = tmp_path_factory.mktemp("out")
    shutil.copytree(folder, out / "good")
    broken = {"key05", "key11"}
    whole_bucket = {"key03", "key08", "key13"}
    bad = {key: make_sample(key, b"not a video\n" * 400, 12, (80, 64)) for key in broken}
    bad |= {key: make_sample(key, b"not a video\n" * 400, 14, (64, 80)) for key in whole_bucket}
    write(out / "bad", [bad.get(sample.row["key"], sample) for sample in samples])
    return out


@pytest.fixture(scope="module")
def told(out: Path, ranks: Ranks) -> dict[str, list[Any]]:
    """What the ranks have to say about each scenario; only those that are still there about the last one."""
    ended = ranks.run(run_all, 4, str(out))
    assert ended.codes == [0, -9, 0, -9], ended.errors
    return {
        name: [json.loads(path.read_text()) for path in sorted(out.glob(f"{name}-?.json"))]
        for name in SCENARIOS
    }


@pytest.mark.parametrize("scenario", ["together", "one by one", "stand-ins"])
def test_all_ranks_get_what_one_stream_gives(out: Path, told: dict[str, list[Any]], scenario: str) -> None:
    alone = read(out, scenario)
    for rank in told[scenario]:
        assert rank["microbatches"] == alone["microbatches"]


def test_each_model_parallel_group_reads_the_stream_of_its_data_parallel_rank(
    out: Path, told: dict[str, list[Any]]
) -> None:
    alone = [read(out, "pairs", rank, 2)["microbatches"] for rank in range(2)]
    assert alone[0] != alone[1]
    for rank, found in enumerate(told["pairs"]):
        assert found["microbatches"] == alone[rank // 2]


@pytest.mark.parametrize("scenario", ["together", "one by one"])
def test_every_byte_is_read_by_one_rank(out: Path, told: dict[str, list[Any]], scenario: str) -> None:
    alone = read(out, scenario)["read"]
    shared = [rank["read"] for rank in told[scenario]]
    assert alone <= sum(shared) <= 1.05 * alone
    assert max(shared) <= 1.25 * sum(shared) / len(shared)


def test_other_ranks_go_on_from_the_state_of_shared_ones(out: Path, told: dict[str, list[Any]]) -> None:
    alone = read(out, "together")["microbatches"]
    assert told["resumed"] == [alone[TAKEN:]] * 4


def test_streams_over_one_share_may_be_read_in_turns(out: Path, told: dict[str, list[Any]]) -> None:
    alone = [
        [digest(micro) for micro in VideoStream(open_dataset(out / "good"), SETTINGS[name])]
        for name in ("together", "stand-ins")
    ]
    assert told["interleaved"] == [alone] * 4


def test_where_one_rank_cannot_go_on_all_say_why(told: dict[str, list[Any]]) -> None:
    [kind, words] = told["storage fails"][0]
    assert (kind, words) == (
        "RunError",
        "rank 2 of the model-parallel group cannot go on: the storage gave up",
    )
    assert told["storage fails"] == [[kind, words]] * 4


def test_a_bug_on_one_rank_keeps_its_type_there(told: dict[str, list[Any]]) -> None:
    assert [kind for kind, _ in told["bug"]] == ["RunError", "RunError", "ZeroDivisionError", "RunError"]
    assert all("a bug" in words for _, words in told["bug"])


def test_ranks_that_would_read_different_streams_are_refused(told: dict[str, list[Any]]) -> None:
    [kind, words] = told["disagree"][0]
    assert kind == "UsageError"
    assert "seed is 3 on its rank 0 and 4 on its rank 1" in words
    assert told["disagree"] == [[kind, words]] * 4


def test_bad_samples_count_on_all_ranks(told: dict[str, list[Any]]) -> None:
    [kind, words] = told["limit"][0]
    assert kind == "RunError"
    assert "more than stream.max_bad=1" in words
    assert told["limit"] == [[kind, words]] * 4


def test_a_share_goes_to_no_worker_process(told: dict[str, list[Any]]) -> None:
    for kind, words in told["workers"]:
        assert kind == "UsageError"
        assert "num_workers=0" in words


def test_a_rank_that_is_gone_ends_the_others_within_seconds(told: dict[str, list[Any]]) -> None:
    assert len(told["gone"]) == 2
    for (kind, words), seconds in told["gone"]:
        assert kind == "RunError"
        assert "broke off" in words
        assert seconds < 30


def test_a_request_on_a_device_waits_for_nothing_there(tmp_path: Path, ranks: Ranks) -> None:
    ended = ranks.run(exchange_on_device, 3, str(tmp_path))
    assert ended.codes == [0] * 3, ended.errors
    for told in [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]:
        assert not told["waits"], told["waits"]
        assert told["sent"] > 0
        assert told["content"] == [
            [value for owner in owners for value in [10 * number + owner] * (5 + owner)]
            for number, owners in enumerate(OWNERS)
        ]
        assert told["contexts"] == [
            [value for owner in owners for value in [100 + owner] * (number % 2)]
            for number, owners in enumerate(OWNERS)
        ]
        assert told["ahead"]


def test_a_stream_collected_in_the_reading_thread_does_not_stop_it() -> None:
    dropped, collected = threading.Event(), threading.Event()

    def parts() -> Iterator[DecodedSlice[int]]:
        for number in range(2):
            if number:
                dropped.wait()
                gc.collect()
                collected.set()
            one = LoadedSample("", "", 0, 5, [], [])
            yield DecodedSlice(number, [0], torch.zeros(5, dtype=torch.uint8), torch.empty(0).byte(), [one])

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        batches: Any = Share().exchange(parts(), pin_memory=False)
        next(batches)
        cycle: list[Any] = [batches]
        cycle.append(cycle)
        del batches, cycle
        dropped.set()
        assert collected.wait(30)
    finally:
        dist.destroy_process_group()


def _as_if_whole(part: Any) -> Any:
    sizes = [3 * bucket.frames * bucket.height * bucket.width for bucket in part.planned.buckets]
    loaded = [LoadedSample("", "", 0, size, [], []) for size in sizes]
    return part._replace(content=torch.zeros(sum(sizes), dtype=torch.uint8), loaded=loaded)


class LastOfEight:
    """A share whose other ranks have nothing to say."""

    rank, size = 7, 8

    def agree(self, facts: dict[str, Any]) -> None: ...

    def exchange(self, parts: Iterator[Any], pin_memory: bool) -> Iterator[Any]:
        return (_as_if_whole(part) for part in parts)


def test_a_forked_worker_process_is_refused(dataset: Dataset) -> None:
    stream = VideoStream(dataset, config(), share=LastOfEight())
    iterator = iter(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork"))
    with pytest.raises(UsageError, match="num_workers=0"):
        next(iterator)
    iterator._shutdown_workers()  # else whichever test collects the garbage waits for the process


def test_a_rank_decodes_ahead_however_many_microbatches_others_decode_between(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, second = count(), threading.Event()

    def decode_two_at_once(*arguments: Any, **options: Any) -> Any:
        if next(began) == 0:
            assert second.wait(20)
        second.set()
        return decode(*arguments, **options)

    monkeypatch.setattr("reelweave.loader.read.collate.decode", decode_two_at_once)
    list(VideoStream(dataset, SETTINGS["one by one"], share=LastOfEight()))
    assert next(began) > 1


def test_a_share_without_a_process_group_is_refused() -> None:
    assert not dist.is_initialized()
    with pytest.raises(UsageError, match="init_process_group"):
        Share()


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_division_is_even_and_in_runs(ranks: int) -> None:
    totals = [0] * ranks
    for number in range(400):
        sizes = [1 + (number * 7919 + place * 104729) % 1000 for place in range(1 + number % 5)]
        owners, totals = divide(sizes, totals)
        runs = sum(owner != before for owner, before in zip(owners, [None, *owners], strict=False))
        assert runs == len(set(owners))
        assert max(totals) - sum(totals) / ranks <= 1000
    assert max(totals) <= 1.02 * sum(totals) / ranks


def test_samples_without_bytes_have_an_owner() -> None:
    owners, totals = divide([0, 0, 0, 0], [0, 0])
    assert sorted(owners) == [0, 0, 1, 1]
    assert divide([5], totals)[0] == [0]
