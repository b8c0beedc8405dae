"""The same videos through NeMo Curator, Daft and Reelweave on CPUs: clips for each second of a processor, and memory.

    python -m tests.bench.clip_peers --videos DIR --peers VENV/bin/python [--only NAME ...] [--stride 10] [--repeat 3]

All cut at every ``--stride`` seconds, encode with x264 (veryfast, crf 20, a key frame every 48 frames, one thread) and
write clips. Each is one process after the other, without Ray: NeMo Curator's own stages called in their order, Daft's
runner of one machine, our runner of one process. Systems run in turns. Processor seconds are those of the process and
of all that it started, imports left out; memory is the largest sum over these processes, of three looks a second.

VENV holds ``nemo-curator``, ``daft[video]`` and ``scenedetect-headless``. NeMo Curator 1.4 offers no x264, only
openh264 and VP9; a subclass of its stage adds the options named above. ``nemo-vp9`` is what it offers by itself.
Daft has no operator that makes clips: ``daft-ffmpeg`` calls FFmpeg in a function of the user's.
"""

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

CRF, PRESET, KEYFRAME_EVERY, MIN_CLIP_S = 20, "veryfast", 48, 2.0
X264 = ["-preset", PRESET, "-crf", str(CRF), "-g", str(KEYFRAME_EVERY), "-x264-params", "mbtree=0"]
VIDEOS = (".mp4", ".mkv", ".webm", ".mov", ".avi", ".ts")


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each system."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--videos", type=Path, required=True)
    parser.add_argument("--peers", default=sys.executable, help="Python that has the peers")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--stride", type=float, default=10.0, help="seconds of a clip")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--one", choices=SYSTEMS, help="run this system, here")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measured(options.one, options.videos, options.out, options.stride)))
        return 0
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in options.only}
    for _ in range(options.repeat):
        for name in options.only:
            python = sys.executable if name.startswith("reelweave") else options.peers
            with tempfile.TemporaryDirectory(prefix="reelweave-peers-") as out:
                again = [python, "-m", "tests.bench.clip_peers", "--one", name, "--out", out]
                again += ["--videos", str(options.videos), "--stride", str(options.stride)]
                done = subprocess.run(again, check=True, stdout=subprocess.PIPE)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps({"system": name, **found[name][-1]}), flush=True)
    print("| system | clips | seconds of video | processor, s | clips for each s | peak MB |")
    print("|---|---|---|---|---|---|")
    for name, runs in found.items():
        cpu_s = [one["cpu_s"] for one in runs]
        print(
            f"| {name} | {runs[0]['clips']} | {runs[0]['video_s']:.0f}"
            f" | {median(cpu_s):.1f} ({min(cpu_s):.1f} to {max(cpu_s):.1f})"
            f" | {runs[0]['clips'] / median(cpu_s):.2f} | {max(one['peak_mb'] for one in runs):.0f} |"
        )
    return 0


def measured(name: str, videos: Path, out: Path, stride_s: float) -> dict[str, Any]:
    """Run a system; return what it made and what that took."""
    function = SYSTEMS[name]()
    watch = Watch()
    before = cpu_s()
    began = time.monotonic()
    with watch:
        function(videos, out, stride_s)
    spent = {"cpu_s": round(cpu_s() - before - watch.cpu_s, 2), "wall_s": round(time.monotonic() - began, 2)}
    return {**spent, "peak_mb": round(watch.peak / 1e6), **made(out)}


def cpu_s() -> float:
    """Return the processor seconds of this process and of all ended ones that it started."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


class Watch:
    """Largest memory of this process and all that it started, shared pages once.

    Attributes:
        peak: In bytes.
        cpu_s: Processor seconds that looking took.
    """

    def __init__(self) -> None:
        self.peak, self.cpu_s = 0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        here = psutil.Process()
        while not self._stop.wait(0.3):
            total = 0
            for one in (here, *here.children(recursive=True)):
                try:
                    lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()
                except OSError:
                    continue
                total += next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
            self.peak, self.cpu_s = max(self.peak, total), time.thread_time()


def made(out: Path) -> dict[str, Any]:
    """Return the number and the length of the clips in a folder, or in the tars of a dataset."""
    if (out / "manifest.json").exists():
        import pyarrow.parquet as pq

        [index] = out.glob("index*.parquet")
        table = pq.read_table(index, columns=["frames", "fps"]).to_pydict()
        seconds = [frames / fps for frames, fps in zip(table["frames"], table["fps"], strict=True)]
        return {"clips": len(seconds), "video_s": sum(seconds)}
    seconds = []
    for path in out.rglob("*.mp4"):
        asked = ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries", "stream=duration"]
        said = subprocess.run([*asked, "-of", "csv=p=0", str(path)], check=True, stdout=subprocess.PIPE)
        seconds.append(float(said.stdout))
    return {"clips": len(seconds), "video_s": sum(seconds)}


def files(videos: Path) -> list[Path]:
    """Return the videos of a folder."""
    return sorted(path for path in videos.rglob("*") if path.suffix in VIDEOS)


def by_ffmpeg(path: str, start_s: float, end_s: float, target: str) -> int:
    """Cut a clip by FFmpeg's program; return its exit status."""
    said = ["ffmpeg", "-v", "error", "-threads", "1", "-ss", str(start_s), "-to", str(end_s), "-i", path]
    said += ["-map", "0:v:0", "-c:v", "libx264", *X264, "-pix_fmt", "yuv420p", "-threads", "1"]
    return subprocess.run([*said, "-map", "0:a:0?", "-c:a", "copy", target], check=False).returncode


Run = Callable[[Path, Path, float], None]


def reelweave(detector: str = "fixed") -> Run:
    """Return our curation: clips, scores, fingerprints, shards, tables. Copies are not sought."""
    from reelweave.curate.config import CurateConfig
    from reelweave.curate.run.curate import curate

    for name in ("reelweave.curate.source_pass.cut_source", "reelweave.curate.source_pass.stage"):
        importlib.import_module(name)

    def run(videos: Path, out: Path, stride_s: float) -> None:
        config = {
            "shots": {"detector": detector, "fixed": {"stride_s": stride_s}},
            "spans": {"max_clip_s": stride_s, "min_clip_s": MIN_CLIP_S, "long_shots": "stride"},
            "dedup": {"perceptual": {"enabled": False}, "exact": {"enabled": False}},
            "run": {"runner": "sequential", "isolate": False},
        }
        curate([str(path) for path in files(videos)], str(out), CurateConfig.model_validate(config))

    return run


def nemo(vp9: bool = False, motion: bool = False) -> Run:
    """Return NeMo Curator's stages, as its video example builds them without embeddings and captions."""
    from loguru import logger
    from nemo_curator.stages.video.clipping.clip_extraction_stages import (
        SUPPORTED_ENCODERS,
        ClipTranscodingStage,
        FixedStrideExtractorStage,
    )
    from nemo_curator.stages.video.filtering.motion_filter import MotionFilterStage, MotionVectorDecodeStage
    from nemo_curator.stages.video.io.clip_writer import ClipWriterStage
    from nemo_curator.stages.video.io.video_reader import VideoReaderStage
    from nemo_curator.tasks.file_group import FileGroupTask

    logger.remove()

    class X264Stage(ClipTranscodingStage):  # type: ignore[misc]
        def _add_video_encoding_options(self, command: list[str], *_: object) -> None:
            command += [*X264, "-pix_fmt", "yuv420p"]

    module = importlib.import_module(ClipTranscodingStage.__module__)
    vars(module)["SUPPORTED_ENCODERS"] = (*SUPPORTED_ENCODERS, "libx264")

    def run(videos: Path, out: Path, stride_s: float) -> None:
        transcode = ClipTranscodingStage(encoder="libvpx-vp9") if vp9 else X264Stage(encoder="libx264")
        stages: list[Any] = [
            VideoReaderStage(),
            FixedStrideExtractorStage(stride_s, stride_s, MIN_CLIP_S, 0),
            transcode,
        ]
        if motion:
            stages += [MotionVectorDecodeStage(num_cpus_per_worker=1.0), MotionFilterStage(score_only=True)]
        writer = {"upload_clips": True, "dry_run": False}
        nothing = dict.fromkeys(("generate_embeddings", "generate_previews", "generate_captions"), False)
        stages.append(ClipWriterStage(str(out), str(videos), **writer, **nothing))
        for stage in stages:
            stage.setup(None)
        for path in files(videos):
            tasks: list[Any] = [FileGroupTask(dataset_name="videos", data=[str(path)])]
            for stage in stages:
                made = [stage.process(task) for task in tasks]
                tasks = [one for some in made for one in (some if isinstance(some, list) else [some])]

    return run


def daft_ffmpeg() -> Run:
    """Return a pipeline of Daft whose function calls FFmpeg for each clip."""
    import daft

    clip = daft.func(return_dtype=daft.DataType.int64())(by_ffmpeg)

    def run(videos: Path, out: Path, stride_s: float) -> None:
        spans = with_spans(daft, videos, out, stride_s)
        asked = (spans[name] for name in ("path", "start_s", "end_s", "target"))
        spans.with_column("rc", clip(*asked)).collect()

    return run


def with_spans(daft: Any, videos: Path, out: Path, stride_s: float) -> Any:
    """Return a data frame with a row for each clip to be made, by the metadata that Daft reads."""
    rows: dict[str, list[Any]] = {name: [] for name in ("path", "start_s", "end_s", "target", "fps")}
    for number, path in enumerate(files(videos)):
        found = daft.VideoFile(str(path)).metadata()
        start_s = 0.0
        while start_s < found["duration"]:
            end_s = min(start_s + stride_s, found["duration"])
            if end_s - start_s >= MIN_CLIP_S:
                target = str(out / f"{number}-{start_s:g}.mp4")
                row = (str(path), start_s, end_s, target, found["fps"])
                for name, value in zip(rows, row, strict=True):
                    rows[name].append(value)
            start_s += stride_s
    return daft.from_pydict(rows)


def scenes() -> Run:
    """Return PySceneDetect's adaptive detector, and FFmpeg for each scene; long scenes are cut at every stride."""
    from scenedetect import AdaptiveDetector, detect

    def run(videos: Path, out: Path, stride_s: float) -> None:
        for number, path in enumerate(files(videos)):
            found = detect(str(path), AdaptiveDetector(), start_in_scene=True)
            for begin, end in found:
                start_s = begin.get_seconds()
                while start_s < end.get_seconds():
                    end_s = min(start_s + stride_s, end.get_seconds())
                    if end_s - start_s >= MIN_CLIP_S:
                        by_ffmpeg(str(path), start_s, end_s, str(out / f"{number}-{start_s:g}.mp4"))
                    start_s += stride_s

    return run


SYSTEMS: dict[str, Callable[[], Run]] = {
    "reelweave": reelweave,
    "nemo": nemo,
    "nemo-motion": lambda: nemo(motion=True),
    "nemo-vp9": lambda: nemo(vp9=True),
    "daft-ffmpeg": daft_ffmpeg,
    "reelweave-shots": lambda: reelweave("colour"),
    "scenedetect": scenes,
}
"""Functions that import a system and return how it runs."""


if __name__ == "__main__":
    sys.exit(main())
