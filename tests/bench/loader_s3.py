"""Reads one rank's planned samples of 200 KB from an S3 server, without and with faults.

    python -m tests.bench.loader_s3 [--samples 1000] [--rounds 3] [--threads 16] [--faults 0.01]

The server is moto behind a proxy that counts what it sends and breaks a share of the answers: error 500, reset and
end in the middle of a body, less than the range asked for. Every sample is compared with its sha256. Prints JSON;
exits with 1 when a sample is lost or an aim is missed.
"""

import argparse
import hashlib
import json
import random
import re
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from reelweave.loader.buckets.assignment import BucketConfig, assign
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import Dataset
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.read.fetch import Fetched, Fetcher
from reelweave.loader.read.sample_reader import SampleReader
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.benchmarks.loader import SAMPLE_BYTES, write_samples
from tests.s3server import Fault, FaultyProxy, make_bucket, s3_server

Read = Callable[[Dataset, Sequence[int]], Iterator[bytes]]
"""Rows of the index -> their clips, in the same order."""

KINDS = ("error 500", "reset", "truncation", "short read")
SHARDS = r"^GET .*/shards/[\w-]+\.tar(\?|$)"
MOST_SENT, LEAST_RATE = 1.05, 0.7
RANKS, BATCH = 2, 8
SHARD_BYTES = 2_000_000  # moto copies the whole object for every range of it


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--faults", type=float, default=0.01, metavar="SHARE")
    options = parser.parse_args(arguments)
    result = bench(as_streamed(options.threads), options.samples, options.rounds, options.faults)
    print(json.dumps({"threads": options.threads, **result}, indent=1))
    return 0 if result["ok"] else 1


def as_streamed(threads: int) -> Read:
    """As the stream reads: whole samples, neighbours of a microbatch together, some microbatches ahead."""

    def read(dataset: Dataset, rows: Sequence[int]) -> Iterator[bytes]:
        samples = SampleReader(dataset)
        fetcher = Fetcher(samples.read, threads)
        pending: deque[list[tuple[int, Fetched]]] = deque()
        try:
            for first in range(0, len(rows), BATCH):
                batch = rows[first : first + BATCH]
                pending.append(
                    list(zip(batch, fetcher.fetch([samples.byte_range(row) for row in batch]), strict=True))
                )
                if len(pending) > 1 + 2 * threads // BATCH:
                    yield from (bytes(samples.clip(*one).media) for one in pending.popleft())
            for microbatch in pending:
                yield from (bytes(samples.clip(*one).media) for one in microbatch)
        finally:
            fetcher.close()

    return read


def bench(read: Read, samples: int, rounds: int, share: float) -> dict[str, object]:
    """Rates and bytes of ``read``, clean and with ``share`` of the answers broken, by turns."""
    with s3_server() as endpoint:
        make_bucket(endpoint, "bench")
        storage = open_storage("s3://bench/set", StorageConfig(endpoint_url=endpoint))
        write_samples(storage, samples, SHARD_BYTES)
        runs: list[list[dict[str, float]]] = [[], []]
        injected: Counter[str] = Counter()
        for seed in range(rounds):
            for part, done in zip((0.0, share), runs, strict=True):
                with RandomFaults(endpoint, part, seed) as proxy:
                    done.append(measure(read, proxy))
                    injected += proxy.injected
    clean, faulty = map(summary, runs)
    rate = faulty["mb_per_s"] / clean["mb_per_s"]
    lost = clean["lost"] + faulty["lost"]
    most_sent = max(clean["sent_over_used"], faulty["sent_over_used"])
    return {
        "samples": samples,
        "read_by_this_rank": clean["samples"],
        "sample_bytes": SAMPLE_BYTES,
        "rounds": rounds,
        "clean": clean,
        "faulty": {**faulty, "injected": dict(injected)},
        "rate_of_clean": rate,
        "ok": lost == 0 and most_sent <= MOST_SENT and rate >= LEAST_RATE,
    }


def measure(read: Read, proxy: "RandomFaults") -> dict[str, float]:
    """One pass over the planned samples through ``proxy``."""
    dataset = Dataset(open_storage("s3://bench/set", StorageConfig(endpoint_url=proxy.url)))
    rows = planned_rows(dataset)
    expected = dataset.index.column("sha256").take(rows).to_pylist()
    before = proxy.bytes_sent(SHARDS)
    began = time.perf_counter()
    used, found = 0, []
    for clip in read(dataset, rows):
        used += len(clip)
        found.append(hashlib.sha256(clip).hexdigest())
    seconds = time.perf_counter() - began
    return {
        "samples": len(rows),
        "requests": len(proxy.lines(SHARDS)),
        "lost": sum(one != other for one, other in zip_longest(expected, found)),
        "sent_over_used": (proxy.bytes_sent(SHARDS) - before) / used,
        "mb_per_s": used / seconds / 1e6,
    }


def planned_rows(dataset: Dataset) -> list[int]:
    """What the first rank of two trains on in an epoch, in this order."""
    config = BucketConfig(
        frames=(1,),
        sizes=((64, 64),),
        compression=Compression(frames=4, height=16, width=16, causal=True),
        max_text_tokens=0,
        memory_tokens=64,
    )
    plan = plan_epoch(assign(dataset.plan_index, config), 0, 0, StepLayout(RANKS))
    return [
        int(row)
        for step in range(len(plan))
        for micro in plan.step(step, rank=0).microbatches
        if micro.weight
        for row in micro.rows
    ]


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    """Losses of all runs, the worst use of bytes, and the median rate."""
    return {
        "samples": runs[0]["samples"],
        "requests": sum(run["requests"] for run in runs),
        "lost": sum(run["lost"] for run in runs),
        "sent_over_used": max(run["sent_over_used"] for run in runs),
        "mb_per_s": statistics.median(run["mb_per_s"] for run in runs),
    }


class RandomFaults(FaultyProxy):
    """Breaks a share of the answers that carry samples, in each way equally often."""

    def __init__(self, upstream: str, share: float, seed: int) -> None:
        super().__init__(upstream)
        self.injected: Counter[str] = Counter()
        self._share, self._random = share, random.Random(seed)

    def next_fault(self, line: str) -> Fault | None:
        with self._lock:
            if not re.search(SHARDS, line) or self._random.random() >= self._share:
                return None
            kind = KINDS[self.injected.total() % len(KINDS)]
            self.injected[kind] += 1
            at = self._random.randrange(1, SAMPLE_BYTES * 9 // 10)  # inside every sample
        return {
            "error 500": Fault("", 1, answer=(500, "InternalError")),
            "reset": Fault("", 1, cut_after=at, reset=True),
            "truncation": Fault("", 1, cut_after=at),
            "short read": Fault("", 1, shorten_to=at),
        }[kind]


if __name__ == "__main__":
    sys.exit(main())
