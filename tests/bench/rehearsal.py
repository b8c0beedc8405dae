"""A rehearsal: curation and training under Slurm on two nodes, each of which is lost, and Prometheus.

    infra/rehearsal [--out DIR]

Slurm, Ray, torchrun, the trainer, the exporter and Prometheus are real; nodes are namespaces of this machine
(`tests.bench.slurm_nodes`). The table is Markdown; 1 is returned if anything in it is wrong.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from reelweave.loader.dataset import verify
from reelweave.loader.storage import open_storage
from tests.bench.slurm_nodes import SlurmNodes, wait_until
from tests.media import write_video

ROOT = Path(__file__).parents[2]
NODES = ["node1", "node2"]
LIMIT_S = 1500.0
"""Of each of the three jobs."""
EXPORTERS = {"clips": 9464, "run": 9465}
"""Port of the exporter of each folder."""
BEGUN = {"clips": ".ledger/status.json", "run": "metrics.jsonl"}
"""File without which a folder has nothing to export."""
STEPS = 500
SOURCES = 10
CURATE = ("shard.max_shard_mb=0.2", "spans.min_clip_s=1", "run.worker_memory_mb=512", "run.isolate=false")
TRAIN = {
    "stream": {
        "workers": 1,
        "buckets": {
            "frames": [5, 9],
            "sizes": [[48, 80]],
            "compression": {"frames": 2, "height": 8, "width": 8, "causal": True},
            "max_text_tokens": 65,
            "memory_tokens": 500,
        },
    },
    "train": {
        "dtype": "float32",
        "model": {"hidden": 48, "heads": 4, "layers": 2, "patch": [1, 2, 2]},
        "tokenizer": {"frames": 2, "height": 4, "width": 4},
        "schedule": {"total_steps": STEPS, "warmup_steps": 1},
        "checkpoint": {"every_steps": 4},
        "log": {"every_steps": 1},
    },
}


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder that is kept, for logs; by default a temporary one")
    options = parser.parse_args(arguments)
    missing = [
        name
        for name in (
            "ip",
            "unshare",
            "munged",
            "slurmctld",
            "slurmd",
            "prometheus",
            "ray",
            "torchrun",
            "reelweave",
        )
        if not shutil.which(name)
    ]
    if missing or os.geteuid():
        print(
            f"infra/rehearsal needs root and, on the PATH, {', '.join(missing) or 'what is there'}",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        out = options.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        rows = Rehearsal(out.resolve()).run()
    print("| what | seen | |\n|---|---|---|")
    for what, seen, right in rows:
        print(f"| {what} | {seen} | {'yes' if right else '**no**'} |")
    return 0 if all(right for _, _, right in rows) else 1


class Rehearsal:
    """Two nodes, their jobs and what watches them, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[tuple[str, str, bool]] = []
        self.slurm = SlurmNodes(folder / "slurm", NODES)
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "SLURM_", "SBATCH_"))
        } | {
            **self.slurm.environment,
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def run(self) -> list[tuple[str, str, bool]]:
        """Rehearse, and return what was seen."""
        clips, run = self.folder / "clips", self.folder / "run"
        for number in range(SOURCES):
            scenes = (30 + 2 * number, 55, 45)
            write_video(self.folder / f"raw/{number}.mp4", scenes, size=(320, 192), first_scene=number)
        settings = [word for one in CURATE for word in ("--set", one)]
        alone = ["reelweave", "curate", "raw", "--out", "alone", *settings, "--set", "run.runner=sequential"]
        subprocess.run(
            alone, cwd=self.folder, env=self.environment, check=True, capture_output=True, timeout=LIMIT_S
        )
        with self.slurm.running(), self.prometheus(), ExitStack() as kept:
            self.curation(clips, settings, kept)
            self.training(clips, run, kept)
            self.scrapes()
        return self.rows

    def add(self, what: str, seen: object, right: bool) -> None:
        """Add a row, and say it at once on standard error."""
        self.rows.append((what, str(seen), right))
        print(f"{what}: {seen}", file=sys.stderr, flush=True)

    def curation(self, clips: Path, settings: list[str], kept: ExitStack) -> None:
        """Curate on two nodes; lose the second, then, with it back, the first."""
        done = 'reelweave_curation_done{phase="cut"}'
        alone = dataset(self.folder / "alone")
        with self.job("curate", clips.name, ["raw", "--out", clips.name, *settings]) as job:
            self.export(clips.name, kept, job)
            job.until(lambda: self.value(done) >= SOURCES / 4, "a quarter of the sources")
            at, began = self.value(done), time.monotonic()
            self.slurm.lose("node2")
            code = job.wait()
            self.add(
                "curation: sources done when the second node was lost", f"{at:g} of {SOURCES}", at < SOURCES
            )
            seconds = time.monotonic() - began
            self.add("curation: exit status of the same job, with one node", code, code == 0)
            self.add("curation: seconds from the loss to the end", f"{seconds:.0f}", True)
        right = verify(open_storage(clips)).ok and dataset(clips) == alone
        self.add("curation: every byte of the dataset that of a run alone, and verified", right, right)
        self.slurm.begin("node2")
        again = self.folder / "again"
        with self.job("curate", again.name, ["raw", "--out", again.name, *settings]) as job:
            ledger = again / ".ledger/cut"
            job.until(lambda: len(list(ledger.glob("*/*.json"))) >= SOURCES / 4, "a quarter of the sources")
            self.slurm.lose("node1")
            began = time.monotonic()
            job.until(lambda: self.field(job, "JobState") == "PENDING", "requeued")
            self.slurm.begin("node1")
            code = job.wait()
            restarts = self.field(job, "Restarts")
            seconds = time.monotonic() - began
        self.add("curation: times that Slurm requeued it with its first node", restarts, restarts == "1")
        self.add("curation: exit status of the requeued job", code, code == 0)
        self.add("curation: seconds from the loss to the end, the node back", f"{seconds:.0f}", True)
        right = verify(open_storage(again)).ok and dataset(again) == alone
        self.add("curation: every byte of it that of a run alone, and verified", right, right)

    def training(self, clips: Path, run: Path, kept: ExitStack) -> None:
        """Train on two nodes of two ranks in one job that loses a node, comes to its time limit, and ends well."""
        config = TRAIN | {"dataset": clips.name, "out": run.name}
        (self.folder / "train.yaml").write_text(yaml.safe_dump(config))
        options = ["--gpus-per-node=2", "--cpus-per-task=1"]
        with self.job("train", run.name, ["--config", "train.yaml"], options) as job:
            self.export(run.name, kept, job)
            job.until(lambda: self.value("reelweave_checkpoint_step") >= 4, "the first checkpoint")
            job.until(lambda: self.value("reelweave_train_step") >= 6, "a step behind it")
            at = self.value("reelweave_train_step")
            self.slurm.lose("node2")
            began = time.monotonic()
            job.until(lambda: self.field(job, "JobState") == "PENDING", "requeued after a lost node")
            self.add("training: step at which the second node was lost", f"{at:g} of {STEPS}", at < STEPS)
            self.add("training: seconds until Slurm had requeued it", f"{time.monotonic() - began:.0f}", True)
            named = "was lost" in job.printed()
            self.add("training: the survivors name who was lost", named, named)
            self.slurm.begin("node2")
            job.until(lambda: self.value("reelweave_train_step") > at, "a step behind the loss")
            self.slurm.ask("scontrol", "update", f"JobId={job.id}", "TimeLimit=4")
            job.until(lambda: self.field(job, "Restarts") == "2", "requeued at its time limit")
            stopped = "saved" in job.printed()
            self.add("training: warned of its time limit, it saved and requeued itself", stopped, stopped)
            self.slurm.ask("scontrol", "update", f"JobId={job.id}", "TimeLimit=60")
            code = job.wait()
        self.add("training: exit status of the job in the end", code, code == 0)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        steps = [line["step"] for line in lines if "loss" in line]
        whole = steps == list(range(1, STEPS + 1))
        self.add("training: steps recorded, each once", f"{steps[0]} to {steps[-1]}", whole)

    def scrapes(self) -> None:
        """Look at what Prometheus has seen over all that time."""
        self.until_scraped(STEPS)
        for series in self.query('up{job="reelweave"}[1h]'):
            place = next(
                one for one, port in EXPORTERS.items() if series["metric"]["instance"].endswith(f":{port}")
            )
            answers = list(itertools.dropwhile(lambda one: one[1] != "1", series["values"]))
            gap = max(float(b[0]) - float(a[0]) for a, b in itertools.pairwise(answers))
            missed = sum(answer != "1" for _, answer in answers)
            seen = f"{len(answers)}, {missed} unanswered, at most {gap:.1f} s apart"
            self.add(
                f"metrics: scrapes of `{place}` from its begin to the end", seen, not missed and gap < 15
            )
        (step,) = self.query("reelweave_train_step[1h]")
        self.add("metrics: distinct training steps seen", len({value for _, value in step["values"]}), True)
        finished, last = self.value("reelweave_curation_finished"), self.value("reelweave_train_step")
        right = finished == 1 and last == STEPS
        self.add("metrics: the curation is finished, the run at its last step", f"step {last:g}", right)

    def until_scraped(self, step: int) -> None:
        end = time.monotonic() + 30
        while self.value("reelweave_train_step") < step and time.monotonic() < end:
            time.sleep(0.5)

    @contextmanager
    def prometheus(self) -> Iterator[None]:
        """Let Prometheus run with the alerts that are shipped, once a second; its targets come later."""
        shipped = yaml.safe_load((ROOT / "infra/observability/prometheus.yaml").read_text())
        shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        shipped["rule_files"] = [str(ROOT / "infra/observability/alerts.yaml")]
        targets = [f"127.0.0.1:{port}" for port in EXPORTERS.values()]
        shipped["scrape_configs"][0]["static_configs"][0]["targets"] = targets
        (self.folder / "prometheus.yaml").write_text(yaml.safe_dump(shipped))
        prometheus = [
            "prometheus",
            f"--config.file={self.folder}/prometheus.yaml",
            f"--storage.tsdb.path={self.folder}/tsdb",
            "--web.listen-address=127.0.0.1:9090",
        ]
        with self.process("prometheus", prometheus):
            yield

    def export(self, place: str, kept: ExitStack, job: "Job") -> None:
        """Begin to export the numbers of a job as soon as its folder has some."""
        begun = self.folder / place / BEGUN[place]
        job.until(begun.exists, f"{begun} is there")
        command = ["reelweave", "metrics", place, "--port", str(EXPORTERS[place])]
        kept.enter_context(self.process(f"exporter-{place}", command))

    @contextmanager
    def process(self, name: str, command: list[str], **more: str) -> Iterator["subprocess.Popen[bytes]"]:
        """Let a process run; it is ended at the end, with what it started."""
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment | more,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield started
            finally:
                if started.poll() is None:
                    os.killpg(started.pid, signal.SIGTERM)
                    try:
                        started.wait(30)
                    except subprocess.TimeoutExpired:
                        os.killpg(started.pid, signal.SIGKILL)
                        started.wait()

    @contextmanager
    def job(self, name: str, out: str, arguments: list[str], options: Sequence[str] = ()) -> Iterator["Job"]:
        """Submit the Slurm script of a command, and wait for its end within the block."""
        log = self.folder / f"job-{out}.log"
        sbatch = ["sbatch", "--wait", "--nodes=2", f"--output={log}", *options]
        command = [*sbatch, str(ROOT / f"infra/slurm/{name}.sbatch"), *arguments]
        with self.process(name, command) as started:
            wait_until(lambda: bool(self.slurm.ask("squeue", "--noheader")), "the job is queued")
            yield Job(started, log, self.slurm.ask("squeue", "--noheader", "--format=%i"))

    def field(self, job: "Job", name: str) -> str:
        """Return a field of a job as Slurm shows it."""
        words = self.slurm.ask("scontrol", "show", "job", job.id).split()
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Ask Prometheus; empty while it does not answer."""
        url = f"http://127.0.0.1:9090/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            return []

    def value(self, expression: str) -> float:
        """Return the newest value; -1 without one."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else -1.0


class Job:
    """A job in Slurm, and the `sbatch` that waits for it."""

    def __init__(self, started: "subprocess.Popen[bytes]", log: Path, number: str) -> None:
        self.id = number
        self._started, self._log = started, log
        self._end = time.monotonic() + LIMIT_S

    def until(self, seen: Callable[[], bool], what: str) -> None:
        """Wait until something is seen while the job runs."""
        while not seen():
            assert self._started.poll() is None, f"ended before {what}: {self.printed()[-2000:]}"
            assert time.monotonic() < self._end, f"not in {LIMIT_S:g} s: {what}: {self.printed()[-2000:]}"
            time.sleep(0.2)

    def wait(self) -> int:
        """Return the exit status."""
        try:
            return self._started.wait(self._end - time.monotonic())
        except subprocess.TimeoutExpired:
            return -1

    def printed(self) -> str:
        """Return all that it has printed so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


def dataset(folder: Path) -> dict[str, bytes]:
    """Return path and content of every file, but for the ledger, the report and what says how the run was set."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    left_out = ".ledger/", "report/"
    return {
        name: path.read_bytes()
        for name, path in paths.items()
        if name != "curate.yaml" and not name.startswith(left_out)
    }


if __name__ == "__main__":
    sys.exit(main())
