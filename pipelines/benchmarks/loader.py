"""Reading speed of a dataset on a local disk, relative to a bare sequential read of its shards.

The readers run by turns in one process, from a warm page cache, without decoding. What is compared is the
work per sample. The stream, which does more, is measured beside them.
"""

import hashlib
import math
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from reelweave.loader.dataset import Dataset, DatasetWriter, Sample
from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage, open_storage
from reelweave.pipelines.benchmarks.encoded_stream import bench_encoded
from reelweave.pipelines.benchmarks.peers import Epoch, installed_peers

SAMPLES, SAMPLE_BYTES = 2000, 200_000
_ROUNDS = 5


def bench_loader(samples: int = SAMPLES) -> dict[str, Any]:
    """Return MB/s and processor time of each reader, best of five rounds, and its ratio to the raw read.

    A ratio is None where the reader is not installed.

    Raises:
        RunError: a reader did not read every clip once.
    """
    with tempfile.TemporaryDirectory(prefix="reelweave-bench-") as name:
        folder = Path(name)
        write_samples(open_storage(folder), samples)
        dataset = Dataset(open_storage(folder))
        clip_bytes = dataset.manifest.totals.clip_bytes
        shards = sorted(folder.glob("shards/*.tar"))
        rows = list(range(samples))
        shuffled = np.random.default_rng(0).permutation(samples).tolist()
        (folder / "copy").mkdir()
        # The same clips by each reader; all must have read every byte.
        readers: dict[str, Epoch] = {
            "raw": lambda: _raw(shards),
            "reelweave": lambda: _clips(dataset, rows),
            "reelweave_random": lambda: _clips(dataset, shuffled),
            **installed_peers(folder, folder / "copy"),
        }
        speeds, cpu_us = dict.fromkeys(readers, 0.0), dict.fromkeys(readers, math.inf)
        for _ in range(_ROUNDS):
            for reader, read in readers.items():
                began, began_s = time.perf_counter(), time.process_time()
                got = read()
                cpu_us[reader] = min(cpu_us[reader], (time.process_time() - began_s) / samples * 1e6)
                if reader != "raw" and got != clip_bytes:
                    raise RunError(f"{reader} read {got} bytes of clips, and there are {clip_bytes}")
                speeds[reader] = max(speeds[reader], got / (time.perf_counter() - began) / 1e6)
        encoded = bench_encoded(dataset)
    ratios = {reader: speed / speeds["raw"] for reader, speed in speeds.items()}
    return {
        "samples": samples,
        "sample_bytes": SAMPLE_BYTES,
        "mb_per_s": speeds,
        "cpu_us_per_sample": cpu_us,
        **encoded,
        "ratio_to_raw": ratios["reelweave"],
        "ratio_to_raw_random": ratios["reelweave_random"],
        **{f"ratio_to_raw_{peer}": ratios.get(peer) for peer in ("webdataset", "energon", "mosaic")},
    }


def write_samples(storage: Storage, samples: int, max_shard_bytes: int = 48_000_000) -> None:
    """Write a dataset of random "clips" of ``SAMPLE_BYTES``, plus or minus ten percent."""
    generator = np.random.default_rng(0)
    with DatasetWriter(storage, max_shard_bytes) as writer:
        for index in range(samples):
            clip = generator.bytes(int(generator.integers(SAMPLE_BYTES * 9 // 10, SAMPLE_BYTES * 11 // 10)))
            row = {
                "key": f"k{index:06}",
                "frames": 1,
                "fps": 25.0,
                "height": 64,
                "width": 64,
                "duration_s": 0.04,
                "text_tokens": 0,
                "caption": "",
                "caption_source": "none",
                "source": f"{index}.mp4",
                "source_sha256": "0" * 64,
                "start_s": 0.0,
                "end_s": 0.04,
                "scores": {},
                "sha256": hashlib.sha256(clip).hexdigest(),
            }
            writer.add(Sample(row, clip))


def _raw(shards: Iterable[Path]) -> int:
    buffer, total = bytearray(1 << 20), 0
    for path in shards:
        handle = os.open(path, os.O_RDONLY)
        while got := os.readv(handle, [buffer]):
            total += got
        os.close(handle)
    return total


def _clips(dataset: Dataset, rows: Iterable[int]) -> int:
    return sum(len(dataset.read_member(row, "mp4")) for row in rows)
