"""Curation, reading and training on machines of one and of 64 processors, made of the machine at hand.

    python -m tests.bench.small_machines --place DIR [--machines affinity-1 quota-1 ...] [--works curate ray read train]

Each case is a process of its own: seven films, embeddings, captions and text embeddings by tiny models; an epoch of the
stream; a training of six steps. Curation must end with the bytes that one process gives on the whole machine, a
stream with the same samples. Threads and processes are the most that were seen at once, memory is their resident sum.

affinity-1: bound to one processor. quota-1: 64 processors are shown, a control group grants the time of one (as root).
many-64: 64 are shown and none more than there are. ray-N: Ray is told that there are N.
A machine that shows 64 is a library that answers for libc (`pretended.c`, needs a C compiler).
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.media import write_video
from tests.tiny_models import tiny_open_clip, tiny_text_encoder
from tests.tiny_vlm import tiny_vlm

_ROOT = Path(__file__).parents[2]
_FILMS = 7  # more than a probe holds, so that a plan of workers follows it
_POLL_S = 0.25
_CURATE = """
import sys
cpus, arguments = int(sys.argv[1]), sys.argv[2:]
if cpus:
    import os
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
from reelweave.pipelines.cli import main
sys.exit(main(arguments))
"""
_READ = """
import sys, yaml
from reelweave.loader.blend import open_source
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.storage import StorageConfig
from reelweave.loader.stream.video_stream import VideoStream
settings = yaml.safe_load(open(sys.argv[2]))["stream"]
del settings["workers"], settings["prefetch"]
stream = VideoStream(open_source(sys.argv[1], StorageConfig()), StreamConfig(**settings, epochs=1))
print(sorted(key for batch in stream for key in batch.keys))
"""


@dataclass(frozen=True)
class Machine:
    """What a process is shown and granted.

    Attributes:
        processors: Number of processors that it is bound to; None for all.
        quota: Processors whose time a control group grants; None for all.
        shown: Number of processors that libc reports; None for the truth.
        claimed: Number of processors that Ray is told; 0 if it looks itself.
    """

    processors: int | None = None
    quota: float | None = None
    shown: int | None = None
    claimed: int = 0


def machine(name: str) -> Machine:
    """Return the machine of a name."""
    kind, _, number = name.partition("-")
    count = int(number or 0)
    return {
        "whole": Machine(),
        "affinity": Machine(processors=count),
        "quota": Machine(quota=count, shown=64),
        "many": Machine(shown=count),
        "ray": Machine(claimed=count),
    }[kind]


@dataclass
class Most:
    """Largest numbers that were seen at once, of a process and all that it started."""

    processes: int = 0
    threads: int = 0
    memory_mb: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def look(self, root: int) -> None:
        """Count processes, threads and memory as they are now."""
        found = list(_below(root))
        threads = {pid: int(status.get("Threads", "0")) for pid, status in found}
        memory = sum(int(status.get("VmRSS", "0 kB").split()[0]) for _, status in found) // 1000
        if sum(threads.values()) > self.threads:
            self.names = {}
            for pid, status in found:
                name = status.get("Name", "")
                self.names[name] = max(self.names.get(name, 0), threads[pid])
        self.processes = max(self.processes, len(found))
        self.threads = max(self.threads, sum(threads.values()))
        self.memory_mb = max(self.memory_mb, memory)


def _below(root: int) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the status of a process and of all that descend from it."""
    children: dict[int, list[int]] = {}
    states: dict[int, dict[str, str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines = (path / "status").read_text().splitlines()
            states[int(path.name)] = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    for pid, state in states.items():
        children.setdefault(int(state.get("PPid", "0")), []).append(pid)
    left = [root]
    while left:
        pid = left.pop()
        if pid in states:
            yield pid, states[pid]
        left += children.get(pid, [])


@contextmanager
def granted(quota: float | None) -> Iterator[Callable[[], None]]:
    """Yield a function that puts the calling process under a quota of processors."""
    if quota is None:
        yield lambda: None
        return
    second = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    group = Path("/sys/fs/cgroup", "" if second else "cpu", f"reelweave-{os.getpid()}")
    group.mkdir()
    try:
        if second:
            (group / "cpu.max").write_text(f"{int(quota * 100_000)} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(int(quota * 100_000)))
        yield lambda: _join(group)
    finally:
        for _ in range(40):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.5)


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def pretended(place: Path, count: int) -> Path:
    """Return the library that shows a number of processors, compiled."""
    library = place / f"pretended-{count}.so"
    if not library.exists():
        source = Path(__file__).with_name("pretended.c")
        call = ["cc", "-shared", "-fPIC", "-O1", f"-DCOUNT={count}", "-o", str(library), str(source), "-ldl"]
        subprocess.run(call, check=True)
    return library


def measured(
    call: Sequence[str], where: Machine, place: Path, limit_s: float
) -> tuple[subprocess.CompletedProcess[str], Most, dict[str, float]]:
    """Run a command on a machine; return how it ended, the most that was seen and its seconds."""
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    if where.shown:
        # MKL asks the kernel itself, and PyTorch asks MKL.
        environment |= {
            "LD_PRELOAD": str(pretended(place, where.shown)),
            "MKL_NUM_THREADS": str(where.shown),
            "MKL_DYNAMIC": "FALSE",
        }
    most = Most()
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with granted(where.quota) as join, (place / "out").open("w+") as out, (place / "err").open("w+") as err:

        def enter() -> None:
            join()
            if where.processors:
                os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: where.processors])

        process = subprocess.Popen(
            call, stdout=out, stderr=err, env=environment, preexec_fn=enter, start_new_session=True
        )
        while process.poll() is None:
            most.look(process.pid)
            if time.monotonic() - began > limit_s:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    done = subprocess.CompletedProcess(
        list(call), process.returncode, (place / "out").read_text(), (place / "err").read_text()
    )
    return done, most, {"seconds": round(time.monotonic() - began), "cpu_s": round(cpu_s, 1)}


def made(folder: Path) -> list[str]:
    """Films, models and a training configuration below a folder; the settings that name the models."""
    if not (folder / "train.yaml").exists():
        for number in range(_FILMS):
            write_video(folder / f"raw/{number}.mp4", (50, 50), first_scene=2 * number)
        tiny_open_clip(folder / "clip")
        tiny_vlm(folder / "vlm", says=("a red kite flies over the sea .",))
        tiny_text_encoder(folder / "t5", "t5")
        config = yaml.safe_load((_ROOT / "pipelines/configs/demo.yaml").read_text())
        config["train"]["schedule"] = {"total_steps": 6, "warmup_steps": 2}
        config["train"]["checkpoint"] = {"every_steps": 6}
        kept = {name: config[name] for name in ("stream", "train")}
        (folder / "train.yaml").write_text(yaml.safe_dump(kept))
    settings = {
        "embed.backend": "open_clip",
        "embed.model": folder / "clip",
        "captions.model": folder / "vlm",
        "captions.short_side_px": 32,
        "captions.max_new_tokens": 24,
        "text_embed.model": folder / "t5",
        "spans.min_clip_s": 1,
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def tree(folder: Path) -> dict[str, bytes]:
    """Content of the dataset's files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and path.relative_to(folder).parts[0] in ("shards", "index.parquet", "manifest.json")
    }


def _call(work: str, where: Machine, place: Path, out: Path, settings: Sequence[str]) -> list[str]:
    """Return the command of a kind of work."""
    reference, config = str(place / "reference"), str(place / "train.yaml")
    if work == "read":
        return [sys.executable, "-c", _READ, reference, config]
    if work == "train":
        own = ["--set", f"dataset={reference}", "--set", f"out={out}"]
        return [sys.executable, "-m", "reelweave.pipelines.cli", "train", "--config", config, "--json", *own]
    runner = "ray" if work == "ray" else "sequential"
    own = ["--out", str(out), *settings, "--set", f"run.runner={runner}"]
    return [sys.executable, "-c", _CURATE, str(where.claimed), "curate", str(place / "raw"), *own]


def main() -> None:
    """Print one JSON line for each machine and work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--place", type=Path, required=True, help="folder for films, models and outputs")
    parser.add_argument(
        "--machines", nargs="+", default=["affinity-1", "quota-1", "many-64", "ray-1", "ray-64"]
    )
    parser.add_argument("--works", nargs="+", default=["curate", "ray", "read", "train"])
    parser.add_argument("--limit-s", type=float, default=1200)
    options = parser.parse_args()
    place = options.place.resolve()
    place.mkdir(parents=True, exist_ok=True)
    settings = made(place)
    reference = place / "reference"
    if not (reference / "manifest.json").exists():
        subprocess.run(_call("curate", Machine(), place, reference, settings), check=True, cwd=_ROOT)
    truth: dict[str, str] = {}
    for name in ["whole", *options.machines]:
        where = machine(name)
        for work in options.works:
            out = place / f"{name}-{work}-{time.time_ns()}"
            call = _call(work, where, place, out, settings)
            if (name == "whole" and work in ("curate", "ray")) or (where.claimed and work != "ray"):
                continue
            done, most, spent = measured(call, where, place, options.limit_s)
            row: dict[str, object] = {"machine": name, "work": work, "exit": done.returncode, **spent}
            if work in ("curate", "ray"):
                row["same"] = done.returncode == 0 and tree(out) == tree(reference)
            else:
                text = (
                    done.stdout if work == "read" else str(json.loads(done.stdout or "{}").get("last_loss"))
                )
                row["same"] = truth.setdefault(work, text) == text
                row["said"] = text[-40:].strip()
            row |= {"processes": most.processes, "threads": most.threads, "memory_mb": most.memory_mb}
            row["of"] = most.names
            print(json.dumps(row), flush=True)
            if done.returncode:
                print(done.stderr[-6000:], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
