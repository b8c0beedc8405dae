"""Peak memory of one curation worker on a long 1080p source.

    python -m tests.bench.curate_memory [--minutes 10]

Renders the source, curates it in a process of its own without Ray, and prints that process's peak RSS and its
wall time as JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

CURATE = """
import sys
from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
curate([sys.argv[1]], sys.argv[2], CurateConfig.model_validate({"run": {"runner": "sequential"}}))
"""


def render(path: Path, minutes: float, rate: int = 25) -> int:
    """A 1080p H.264 source with a cut every eight seconds and moving texture; returns its frames.

    Past ten minutes the same pictures come again, copied and not encoded again.
    """
    frames = round(minutes * 60 * rate)
    unit = path.with_stem("unit")
    encode(unit, min(frames, 10 * 60 * rate), rate)
    written = 0
    with av.open(str(path), "w") as container:
        stream = None
        while written < frames:
            with av.open(str(unit)) as part:
                source = part.streams.video[0]
                stream = stream or container.add_stream_from_template(source)
                offset = round(written / rate / source.time_base)
                for packet in part.demux(source):
                    if packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + offset, packet.dts + offset
                        packet.stream = stream
                        container.mux(packet)
                        written += 1
    unit.unlink()
    return written


def encode(path: Path, frames: int, rate: int) -> None:
    """The pictures of `render`, encoded."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(rate))
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        stream.options = {"preset": "ultrafast", "crf": "26"}
        for number in range(frames):
            if number % (8 * rate) == 0:
                coarse = rng.integers(20, 235, (18, 40, 3), dtype=np.uint8)
                canvas = np.kron(coarse, np.ones((72, 72, 1), np.uint8))
            left = 3 * (number % (8 * rate))
            picture = np.ascontiguousarray(canvas[100:1180, left % 900 : left % 900 + 1920])
            container.mux(
                stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format="yuv420p"))
            )
        container.mux(stream.encode(None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reelweave-bench-") as folder:
        source = Path(folder) / "long.mp4"
        frames = render(source, options.minutes)
        before = time.perf_counter()
        subprocess.run([sys.executable, "-c", CURATE, str(source), f"{folder}/dataset"], check=True)
        seconds = time.perf_counter() - before
        peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        size_mb = source.stat().st_size / 1e6
    print(
        json.dumps(
            {
                "source": {
                    "minutes": options.minutes,
                    "frames": frames,
                    "size": "1920x1080",
                    "mb": round(size_mb, 1),
                },
                "peak_rss_mb": round(peak_mb),
                "limit_mb": 1536,
                "wall_s": round(seconds, 1),
                "frames_per_s": round(frames / seconds, 1),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
