"""Short training runs and a sampled video on a GPU against the same on the processor, in one call of minutes.

    python -m tests.bench.gpu_equality [--out DIR] [--at-once N]     # --tiny: on the processor, to try it out

Each case is a process of its own, whose row is added to DIR/gpu_equality.jsonl. A row's error is the largest relative
difference of a loss to the reference run, of a sampled video the mean difference of its pixels. It needs PyTorch and
the base dependencies of `pyproject.toml`, and decodes no video.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

STEPS = 8
CASE_S = 60
ROUNDED = 2e-4  # float32 sums in another order, over eight steps of AdamW
COARSE = 2e-2  # bfloat16
SEEN = 0.1  # levels of 255, of a sampled video: weights that are 0.2 % larger give as much
READS = 1.0  # of the device per step: that of the step's numbers


@dataclass(frozen=True)
class Case:
    """One run on the device, and the run that it is compared with.

    Attributes:
        name: in words.
        limit: largest error that is right.
        changes: keys of the training configuration; of the reference only `model` and `dtype`.
        operators: provider of the fused operators on the device.
        against: "processor", or "itself" for a second run on the same device.
        kind: what is compared.
    """

    name: str
    limit: float
    changes: dict[str, Any] = field(default_factory=dict)
    operators: str = "eager"
    against: str = "processor"
    kind: str = "losses"


_BF16 = {"dtype": "bfloat16"}
_COMPILED = {"parallel": {"compile": True}}
_FP8 = {"fp8": {"recipe": "tensorwise"}}
CASES = (
    Case("float32", ROUNDED),
    Case("bfloat16", COARSE, _BF16),
    Case("float32, nvrtc", ROUNDED, operators="nvrtc"),
    Case("bfloat16, nvrtc", COARSE, _BF16, operators="nvrtc"),
    Case("bfloat16, compiled, nvrtc", COARSE, _BF16 | _COMPILED, operators="nvrtc"),
    Case("the same bits twice", 0.0, _BF16, "nvrtc", against="itself"),
    Case("resumed", 0.0, _BF16, "nvrtc", against="itself", kind="resumed"),
    Case("reads of the device per step", READS, _BF16, "nvrtc", kind="reads"),
    Case("st_dit", ROUNDED, {"model": {"kind": "st_dit"}}),
    Case("mmdit", ROUNDED, {"model": {"kind": "mmdit"}}),
    Case("edm", ROUNDED, {"objective": {"name": "edm"}}),
    Case("checkpointed", ROUNDED, {"parallel": {"activation_checkpointing": "selective"}}),
    Case("fsdp of one rank", ROUNDED, {"parallel": {"dp_replicate": 1, "dp_shard": "rest"}}),
    Case("fp8 tensorwise", 0.1, _BF16 | _COMPILED | _FP8, "nvrtc"),
    Case("sampled video", SEEN, kind="video"),
)
"""The most telling first."""


class Row(NamedTuple):
    """What a case gave.

    Attributes:
        case: its name.
        error: largest error, in the units of its limit.
        limit: of the case.
        seconds: of the case with its reference.
        failed: why there is no error.
    """

    case: str
    error: float | None
    limit: float
    seconds: float
    failed: str | None = None

    @property
    def right(self) -> bool:
        """Whether it was measured and keeps the limit."""
        return self.error is not None and self.error <= self.limit


def measured(case: Case, device: str) -> float:
    """Return the case's error in this process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if case.kind == "video":
            return _video(case, device)
        if case.kind == "reads":
            return _reads(case, device, out)
        found = _losses(case, device, out / "run", stops=case.kind == "resumed")
        where = device if case.against == "itself" else "cpu"
        exact = _losses(case, where, out / "reference", reference=case.against == "processor")
    return max(abs(one - other) / abs(other) for one, other in zip(found, exact, strict=True))


def _config(case: Case, device: str, reference: bool = False) -> Any:
    from tests.train.clips import tiny_config

    changes = {name: case.changes[name] for name in case.changes if not reference or name in _OF_REFERENCE}
    base = tiny_config(STEPS, every_steps=STEPS // 2).model_dump(mode="json")
    model = {"hidden": 256, "heads": 2, "layers": 3, "mlp_ratio": 2.0} | changes.get("model", {})
    if "fp8" in changes and device == "cpu":
        changes["fp8"] = changes["fp8"] | {"emulate": True}
    values = base | changes | {"model": base["model"] | model, "device": device, "seed": 3}
    return type(tiny_config()).model_validate(values)


_OF_REFERENCE = ("model", "objective", "dtype")


def _losses(case: Case, device: str, out: Path, reference: bool = False, stops: bool = False) -> list[float]:
    """Return the losses of all steps; with ``stops`` the stream ends halfway, and the run is resumed."""
    from reelweave.loader.errors import RunError
    from reelweave.train.loop.trainer import Trainer
    from tests.train.clips import ClipStream
    from tests.train.saved import losses

    class Half(ClipStream):
        def __iter__(self) -> Iterator[Any]:
            return takewhile(lambda batch: batch.step < STEPS // 2, super().__iter__())

    config = _config(case, device, reference)
    if stops:
        with suppress(RunError):  # the stream ended early
            Trainer(config, Half(), out).run()
    Trainer(config, ClipStream(), out).run()
    found = losses(out)
    if len(found) != STEPS:
        raise RunError(f"{len(found)} steps were recorded instead of {STEPS}")
    return found


def _video(case: Case, device: str) -> float:
    """Return the mean difference of two sampled videos, of the same random weights, in levels of 255."""
    import torch

    from reelweave.train.models.bundle import Bundle
    from reelweave.train.sampling.config import SampleConfig
    from reelweave.train.sampling.generate import generate
    from tests.train.clips import BUCKETS

    size = BUCKETS[0]
    wanted = SampleConfig(
        frames=size.frames, height=size.height, width=size.width, steps=8, guidance=3.0, solver="unipc"
    )
    videos = []
    for place in ("cpu", device):
        config = _config(case, place)
        bundle = Bundle(config)
        drawn = torch.Generator().manual_seed(0)
        for weight in bundle.dit.parameters():  # a new model's gates are shut, and its output is zero
            weight.data.copy_(torch.randn(weight.shape, generator=drawn) * 0.05)
        video = generate(bundle.to(place), config.losses, wanted, ["a wave going 1", "a wave going 2"])
        videos.append(video.cpu().float())
    return float((videos[0] - videos[1]).abs().mean())


def _reads(case: Case, device: str, out: Path) -> float:
    """Return how often a step waits for the device, as PyTorch warns of it, without the first steps."""
    import torch

    from reelweave.train.loop.trainer import Trainer
    from tests.train.clips import ClipStream

    if device == "cpu":
        return 0.0
    waits: list[int] = []
    stream = ClipStream()
    say = warnings.showwarning

    def count(message: Warning | str, *where: Any, **how: Any) -> None:
        if "synchroniz" in str(message):
            waits.append(stream.position)
        else:
            say(message, *where, **how)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count
        torch.cuda.set_sync_debug_mode("warn")
        Trainer(_config(case, device), stream, out).run()
        torch.cuda.set_sync_debug_mode("default")
    warm, checkpoints = 2, (STEPS // 2, STEPS)
    steady = [step for step in range(warm + 1, STEPS + 1) if step not in checkpoints]
    return sum(waits.count(step) for step in steady) / len(steady)


def child(case: Case, tiny: bool, left_s: float) -> Row:
    """Run a case in a process of its own."""
    began, limit_s = time.monotonic(), min(CASE_S, left_s)
    if limit_s < 5:
        return Row(case.name, None, case.limit, 0.0, "no time was left")
    command = [sys.executable, "-m", "tests.bench.gpu_equality", "--case", case.name, *(["--tiny"] * tiny)]
    # A world of one rank, so that collectives run.
    world = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    # A thread for every processor in each of many processes would take minutes.
    own = {"REELWEAVE_KERNELS": "eager" if tiny else case.operators, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            env=os.environ | own | (world if "fsdp" in case.name else {}),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Row(case.name, None, case.limit, limit_s, f"not done after {limit_s:.0f} s")
    seconds = time.monotonic() - began
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1][:300]
        return Row(case.name, None, case.limit, seconds, last)
    return Row(case.name, float(done.stdout.split()[-1]), case.limit, seconds)


def markdown(rows: Sequence[Row], device: str) -> Iterator[str]:
    """Yield the lines of the table, wrong ones first."""
    yield f"{device}.\n"
    yield "| run | largest error | right up to | |\n|---|---|---|---|"
    for row in sorted(rows, key=lambda row: row.right):
        error = f"not measured: {row.failed}" if row.error is None else f"{row.error:.2g}"
        yield f"| {row.case} | {error} | {row.limit:g} | {'' if row.right else '**wrong**'} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-equality-out"))
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="cases at once, a thread each")
    parser.add_argument("--tiny", action="store_true")
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="CASE")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = "cpu" if options.tiny else "cuda"
    if options.case:
        print(measured(next(case for case in CASES if case.name == options.case), device))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    cases = [case for case in CASES if case.name in options.only]

    def measure(case: Case) -> Row:
        return child(case, options.tiny, options.seconds - (time.monotonic() - began))

    rows = []
    with (
        ThreadPoolExecutor(options.at_once) as at_once,
        (options.out / "gpu_equality.jsonl").open("w") as lines,
    ):
        for row in at_once.map(measure, cases):
            rows.append(row)
            print(json.dumps(row._asdict()), file=lines, flush=True)
    print("\n".join(markdown(rows, "a processor; these figures say nothing" if options.tiny else _name())))
    sys.exit(not all(row.right for row in rows))


def _name() -> str:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
