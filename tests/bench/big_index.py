"""How fast the plan index of a very large dataset opens, and what it takes of memory.

    python -m tests.bench.big_index [--samples 100000000] [--epoch] [--folder /tmp]

Makes a dataset of that many samples with nothing in it but a manifest and its plan index, opens it in fresh
processes (first after the system was asked to forget the file, then again) and gives every sample its bucket;
with ``--epoch`` two epochs are planned as well, one where B is 1 for most and one where it is about 8. Needs about
75 bytes of disk per sample while it runs.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from reelweave.loader.base.columns import parts
from reelweave.loader.buckets.assignment import Assignment, BucketConfig, assign
from reelweave.loader.dataset import Manifest, open_dataset
from reelweave.loader.dataset.manifest import FileEntry, ShardEntry, Totals, count_states
from reelweave.loader.dataset.plan_index import DTYPES, PlanIndex, write_plan_index
from reelweave.loader.dataset.schema import TABLES
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import StepLayout

PER_SHARD = 1000
SHAPES = np.array(
    [(480, 832), (720, 1280), (1080, 1920), (1920, 1080), (240, 320), (1080, 1440), (576, 1024)]
)
SHARES = (0.3, 0.2, 0.2, 0.1, 0.01, 0.09, 0.1)
CONFIG = BucketConfig(
    frames=(1, 17, 49, 81, 129),
    sizes=((480, 832), (720, 1280), (832, 480), (640, 640)),
    compression="wan",
    max_text_tokens=512,
    memory_tokens=144_000,
    compute_budget=3.4e9,
)
LARGE_BATCHES = CONFIG.model_copy(update={"memory_tokens": 576_000, "compute_budget": None})


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--epoch", action="store_true", help="plan two epochs for 128 ranks as well")
    parser.add_argument("--folder", default=None, help="where the dataset is made, and removed again")
    parser.add_argument("--opened", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.opened:
        print(json.dumps(opened(Path(options.opened), options.epoch)))
        return 0
    with tempfile.TemporaryDirectory(prefix="reelweave-big-", dir=options.folder) as name:
        folder = Path(name) / "dataset"
        size = make(folder, options.samples)
        result = {"samples": options.samples, "file_bytes_per_sample": size / options.samples}
        for temperature in ("cold", "warm"):
            if temperature == "cold":
                forget(folder / "plan.arrow")
            epoch = ["--epoch"] if options.epoch and temperature == "warm" else []
            command = [sys.executable, "-m", "tests.bench.big_index", "--opened", str(folder), *epoch]
            result[temperature] = json.loads(
                subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            )
    print(json.dumps(result, indent=1))
    return 0


def make(folder: Path, samples: int) -> int:
    """A dataset that says it has so many samples, its columns drawn a part at a time, on disk; bytes of the index."""
    scratch = folder / "columns"
    scratch.mkdir(parents=True)
    columns = {name: np.memmap(scratch / name, dtype, "w+", shape=samples) for name, dtype in DTYPES.items()}
    for number, part in enumerate(parts(samples)):
        generator = np.random.default_rng(number)
        row = np.arange(part.start, min(part.stop, samples))
        columns["frames"][part] = generator.integers(8, 300, len(row))
        columns["fps"][part] = generator.choice([24, 25, 29.97, 30, 60], len(row))
        columns["height"][part], columns["width"][part] = SHAPES[
            generator.choice(len(SHAPES), len(row), p=SHARES)
        ].T
        columns["text_tokens"][part] = generator.integers(5, 400, len(row))
        columns["size"][part] = 512 * generator.integers(200, 8000, len(row))
        columns["crc32"][part] = generator.integers(0, 2**32, len(row))
        columns["shard"][part] = generator.permutation(row) // PER_SHARD
        columns["offset"][part] = 512 * generator.integers(0, 2**20, len(row))
    write_plan_index(PlanIndex(**columns), str(folder / "plan.arrow"))
    for name in columns:
        (scratch / name).unlink()
    path = folder / "plan.arrow"
    with path.open("rb") as file:
        os.fsync(file.fileno())
        entry = FileEntry(
            path=path.name, size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest()
        )
    manifest = Manifest(
        totals=Totals(
            samples=samples,
            sources=1,
            duration_s=0,
            clip_bytes=0,
            accounting=count_states(["kept"]) | {"kept": samples},
        ),
        shards=[
            ShardEntry(
                path=f"shards/{number:06d}.tar",
                size=2**31,
                sha256="ab" * 32,
                samples=min(PER_SHARD, samples - number * PER_SHARD),
            )
            for number in range(-(-samples // PER_SHARD))
        ],
        files=[
            entry,
            *(FileEntry(path=f"{name}.parquet", size=1, sha256="ab" * 32) for name in TABLES),
            *(
                FileEntry(path=f"shards/{number:06d}.tar.idx", size=8016, sha256="ab" * 32)
                for number in range(-(-samples // PER_SHARD))
            ),
        ],
        config={},
        versions={},
    )
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return entry.size


def forget(path: Path) -> None:
    """Asks the system to drop the file from its cache, so that the next reader goes to the disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def opened(folder: Path, epoch: bool) -> dict[str, float]:
    """Seconds of each step, and bytes of memory per sample after it: this process's own, and of the mapped file."""
    result: dict[str, float] = {}
    own, mapped = resident()
    began = time.perf_counter()
    dataset = open_dataset(folder)
    result["manifest_s"] = time.perf_counter() - began
    own_with_manifest, _ = resident()
    began = time.perf_counter()
    index = dataset.plan_index
    result["open_s"] = time.perf_counter() - began
    result["manifest_bytes"] = own_with_manifest - own

    def note(step: str) -> None:
        now_own, now_mapped = resident()
        result[f"{step}_own_bytes_per_sample"] = (now_own - own_with_manifest) / len(index)
        result[f"{step}_mapped_bytes_per_sample"] = (now_mapped - mapped) / len(index)

    note("open")
    began = time.perf_counter()
    assignment = assign(index, CONFIG)
    result["assign_s"] = time.perf_counter() - began
    result["unassigned"] = len(assignment.unassigned)
    note("assign")
    result["peak_bytes_per_sample"] = (status("VmHWM") - own_with_manifest) / len(index)
    if epoch:
        result |= planned("epoch", assignment)
        result |= planned("epoch_of_large_batches", assign(index, LARGE_BATCHES))
    return result


def planned(name: str, assignment: Assignment) -> dict[str, float]:
    """Plans an epoch for 128 ranks x 4: seconds, also of the processor, and bytes of memory per sample."""
    samples = len(assignment.bucket_of)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before, began, began_cpu = status("VmRSS"), time.perf_counter(), time.process_time()
    plan = plan_epoch(assignment, 0, 0, StepLayout(128, 4))
    return {
        f"{name}_s": time.perf_counter() - began,
        f"{name}_cpu_s": time.process_time() - began_cpu,
        f"{name}_microbatches": len(plan.turns),
        f"{name}_peak_bytes_per_sample": (status("VmHWM") - before) / samples,
        f"{name}_kept_bytes_per_sample": (status("VmRSS") - before) / samples,
    }


def resident() -> tuple[int, int]:
    """Bytes in memory: of this process alone, and of files mapped into it."""
    return status("RssAnon"), status("RssFile")


def status(name: str) -> int:
    """One line of the process's memory figures, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


if __name__ == "__main__":
    sys.exit(main())
