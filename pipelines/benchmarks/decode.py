"""Decoding speed: the stream, and decoders alone, on the same frames of the same clips.

The decoders alone get clips that are in memory already, and as many threads as the stream decodes in.
"""

import hashlib
import io
import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from reelweave.curate.cut.config import CutConfig
from reelweave.curate.cut.encode import X264, ClipEncoder
from reelweave.curate.cut.mp4 import fast_start
from reelweave.curate.frames.picture import Geometry
from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.base.processors import processors
from reelweave.loader.buckets.assignment import Bucket, BucketConfig
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import Dataset, DatasetWriter, Sample
from reelweave.loader.read.decode import decode_with_pyav
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.storage import open_storage
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.pipelines.footage.scenes import CLOUDS, EMBERS, LENS, SPIRES, draw_scene

SCENES = (CLOUDS, SPIRES, EMBERS, LENS)
_SIZES = (Geometry(1280, 720), Geometry(854, 480))
_BUCKET = Bucket(33, 240, 416)
_BATCH = 4
_FPS = 24


class _Draw(NamedTuple):
    """A clip and the frames drawn from it."""

    clip: bytes
    frames_T: IndexArray
    covering: Geometry


def bench_decode(
    scenes: tuple[str, ...] = SCENES, frames: int = 72, copies: int = 3, rounds: int = 5
) -> dict[str, Any]:
    """Return clips per second and CPU time per clip, best of all rounds, and the stream's ratios to decoders.

    On a busy machine compare CPU times: decord starts threads of its own, which take a larger share.

    Args:
        scenes: number of scenes, each rendered at 720 and at 480 lines.
        frames: number of frames per clip.
        copies: samples per clip, each with other frames.
        rounds: repetitions; stream and decoders alternate within each.
    """
    with tempfile.TemporaryDirectory(prefix="reelweave-bench-") as name:
        dataset = _dataset(Path(name), scenes, frames, copies)
        config = _config()
        draws = _draws(dataset, config)

        def stream() -> None:
            for _ in VideoStream(dataset, config):
                pass

        # The same draws by the stream and by bare decoders, in as many threads.
        readers: dict[str, Callable[[], object]] = {
            "stream": stream,
            "pyav": lambda: _in_threads(_pyav, draws, config.workers),
        }
        if find_spec("decord") is not None:
            readers["decord"] = lambda: _in_threads(_decord, draws, config.workers)
        speeds, cpu_ms = dict.fromkeys(readers, 0.0), dict.fromkeys(readers, math.inf)
        for _ in range(rounds):
            for reader, read in readers.items():
                began, cpu_began = time.perf_counter(), time.process_time()
                read()
                speeds[reader] = max(speeds[reader], len(draws) / (time.perf_counter() - began))
                cpu_ms[reader] = min(cpu_ms[reader], 1000 * (time.process_time() - cpu_began) / len(draws))
    return {
        "clips": len(draws),
        "shape": str(_BUCKET),
        "threads": config.workers,
        "clips_per_s": speeds,
        "cpu_ms_per_clip": cpu_ms,
        "ratio_to_pyav": speeds["stream"] / speeds["pyav"],
        "ratio_to_decord": speeds["stream"] / speeds["decord"] if "decord" in speeds else None,
    }


def _dataset(folder: Path, scenes: tuple[str, ...], frames: int, copies: int) -> Dataset:
    storage = open_storage(folder)
    with DatasetWriter(storage) as writer:
        for index, scene in enumerate(scenes):
            for size, clip in _clips(scene, frames):
                for copy in range(copies):
                    writer.add(Sample(_row(f"{index}-{size.height}-{copy}", size, frames, clip), clip))
    return Dataset(storage)


def _clips(scene: str, frames: int) -> list[tuple[Geometry, bytes]]:
    """Draw a scene in every size, encoded as curation encodes clips."""
    largest = _SIZES[0]
    encoders = [(size, ClipEncoder(X264, size, Fraction(_FPS), CutConfig())) for size in _SIZES]
    graph = f"{draw_scene(scene, largest.width, largest.height, _FPS)},trim=end_frame={frames}"
    with av.open(graph, format="lavfi") as pictures:
        for frame in pictures.decode(video=0):
            for size, encoder in encoders:
                encoder.show(frame.reformat(size.width, size.height, "yuv420p"), times=1)
    return [(size, fast_start(encoder.finish())) for size, encoder in encoders]


def _row(key: str, size: Geometry, frames: int, clip: bytes) -> dict[str, Any]:
    return {
        "key": key,
        "frames": frames,
        "fps": float(_FPS),
        "height": size.height,
        "width": size.width,
        "duration_s": frames / _FPS,
        "text_tokens": 0,
        "caption": "",
        "caption_source": "none",
        "source": f"{key}.mp4",
        "source_sha256": "0" * 64,
        "start_s": 0.0,
        "end_s": frames / _FPS,
        "scores": {},
        "sha256": hashlib.sha256(clip).hexdigest(),
    }


def _config() -> StreamConfig:
    buckets = BucketConfig(
        frames=(_BUCKET.frames,),
        sizes=((_BUCKET.height, _BUCKET.width),),
        compression=Compression(
            frames=_BUCKET.frames, height=_BUCKET.height, width=_BUCKET.width, causal=False
        ),
        max_text_tokens=0,
        memory_tokens=_BATCH,  # a sample is one token
    )
    return StreamConfig(buckets=buckets, workers=processors(), epochs=1)


def _draws(dataset: Dataset, config: StreamConfig) -> list[_Draw]:
    """Return what the stream decodes, in its order."""
    sizes = dict(
        zip(
            dataset.index.column("key").to_pylist(),
            zip(
                dataset.index.column("height").to_pylist(),
                dataset.index.column("width").to_pylist(),
                strict=True,
            ),
            strict=True,
        )
    )
    draws = []
    for micro in VideoStream(dataset, config.model_copy(update={"decode": False})):
        assert micro.media is not None
        for index, key in enumerate(micro.keys):
            height, width = sizes[key]
            scale = max(_BUCKET.height / height, _BUCKET.width / width)
            covering = Geometry(round(width * scale), round(height * scale))
            clip = micro.media[index].numpy().tobytes()
            draws.append(_Draw(clip, micro.media.frames[index], covering))
    return draws


def _in_threads(decode: Callable[[_Draw], NDArray[np.uint8]], draws: list[_Draw], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(decode, draws):
            pass


def _decord(draw: _Draw) -> NDArray[np.uint8]:
    import decord

    reader = decord.VideoReader(
        io.BytesIO(draw.clip), num_threads=1, height=draw.covering.height, width=draw.covering.width
    )
    pixels_THWC: NDArray[np.uint8] = reader.get_batch(draw.frames_T.tolist()).asnumpy()
    return pixels_THWC


def _pyav(draw: _Draw) -> NDArray[np.uint8]:
    video_CTHW = np.empty((3, _BUCKET.frames, _BUCKET.height, _BUCKET.width), np.uint8)
    decode_with_pyav(draw.clip, draw.frames_T, video_CTHW)
    return video_CTHW
