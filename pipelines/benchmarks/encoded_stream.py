"""Streaming speed of encoded samples: planned, read, verified by checksum, parsed and collated."""

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
    """Return MB/s of one process and of two DataLoader workers, best of three alternating rounds.

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
    speeds = {"stream_mb_per_s": 0.0, "two_workers_mb_per_s": 0.0}
    for _ in range(_ROUNDS):
        for name, processes in zip(speeds, (0, 2), strict=True):
            loader = DataLoader(VideoStream(dataset, config), batch_size=None, num_workers=processes)
            speeds[name] = max(speeds[name], _mb_per_s(loader, _EPOCHS * dataset.manifest.totals.clip_bytes))
    return speeds


def _mb_per_s(microbatches: Iterable[Microbatch], clip_bytes: int) -> float:
    """Measure the speed after the first quarter; every page that arrives is touched."""
    began, arrived, before, samples_seen = 0.0, 0, 0, 0
    for micro in microbatches:
        assert micro.media is not None
        samples_seen += int(micro.media.bytes_N.numpy()[::_PAGE_BYTES].sum())
        arrived += micro.media.bytes_N.numel()
        if not began and arrived >= clip_bytes / 4:
            began, before = time.perf_counter(), arrived
    taken_s = time.perf_counter() - began
    if arrived != clip_bytes or not samples_seen:
        raise RunError(f"the stream handed out {arrived} bytes of clips, and there are {clip_bytes}")
    return (arrived - before) / taken_s / 1e6
