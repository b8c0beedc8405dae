"""Streaming speed of encoded samples: planned, read, verified by checksum, parsed and collated."""

import math
import time
from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from reelweave.loader.batch import Microbatch
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import RunError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.video_stream import VideoStream

_BATCH = 64
_EPOCHS = 4
_ROUNDS = 3
_PAGE_BYTES = 4096


def bench_encoded(dataset: Dataset) -> dict[str, Any]:
    """Return MB/s of one process and of two DataLoader workers, and processor time of one, best of three rounds.

    The rounds alternate.

    Args:
        dataset: dataset with samples of 64 x 64 pixels.

    Raises:
        RunError: not every clip arrived in every epoch.
    """
    config = StreamConfig(
        buckets=BucketConfig(
            frames=(1,),
            sizes=((64, 64),),
            compression=Compression(frames=1, height=64, width=64, causal=False),
            max_text_tokens=0,
            memory_tokens=_BATCH,  # a sample is one token
        ),
        decode=False,
        readers=1,
        workers=1,
        read_ahead_mib=16,
        epochs=_EPOCHS,
    )
    speeds, cpu_us = {"stream_mb_per_s": 0.0, "two_workers_mb_per_s": 0.0}, math.inf
    clip_bytes = _EPOCHS * dataset.manifest.totals.clip_bytes
    for _ in range(_ROUNDS):
        for name, processes in zip(speeds, (0, 2), strict=True):
            loader = DataLoader(VideoStream(dataset, config), batch_size=None, num_workers=processes)
            mb_per_s, us = _measure(loader, clip_bytes)
            speeds[name] = max(speeds[name], mb_per_s)
            cpu_us = cpu_us if processes else min(cpu_us, us)
    return {**speeds, "stream_cpu_us_per_sample": cpu_us}


def _measure(microbatches: Iterable[Microbatch], clip_bytes: int) -> tuple[float, float]:
    """Measure MB/s and processor microseconds a sample behind the first quarter; every page that arrives is touched."""
    began, began_s, arrived, before, samples_seen, samples = 0.0, 0.0, 0, 0, 0, 0
    for micro in microbatches:
        assert micro.media is not None
        samples_seen += int(micro.media.bytes_N.numpy()[::_PAGE_BYTES].sum())
        arrived += micro.media.bytes_N.numel()
        samples += len(micro.keys)
        if not began and arrived >= clip_bytes / 4:
            began, before, samples = time.perf_counter(), arrived, 0
            began_s = time.process_time()
    taken_s, cpu_s = time.perf_counter() - began, time.process_time() - began_s
    if arrived != clip_bytes or not samples_seen:
        raise RunError(f"the stream handed out {arrived} bytes of clips, and there are {clip_bytes}")
    return (arrived - before) / taken_s / 1e6, cpu_s / max(1, samples) * 1e6
