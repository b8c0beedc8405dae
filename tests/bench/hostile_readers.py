"""Break inputs of every reader by the thousand, in processes with limits, and count what was survived.

    python -m tests.bench.hostile_readers --count 2000 --seed 1 [--only NAME] [--coverage S]

Each reader has a process of its own. An input is lost when its reader raises anything but an error of ours in words,
dies, takes more than 10 s of the processor, 60 s of waiting or 1 GiB, writes outside its folder, starts a program,
contacts anybody or unpickles.
With --coverage, atheris drives each reader for S seconds beside that, guided by the lines that are reached.
"""

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.attack import MOST_BYTES, MOST_S, Lost, alarmed, broken, survive, watch
from tests.fuzz.readers import READERS

MOST_WAIT_S = 60


def attack(name: str, seed: int, first: int, count: int, out: Path) -> None:
    """Give inputs ``first`` to ``count`` to one reader; a line of ``out`` for each that was lost, and for every 50."""
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "own"
        folder.mkdir()
        os.chdir(scratch)
        whole = reader.seeds(folder)
        for data in whole:
            survive(reader, folder, data)  # what is imported and kept is not the next input's
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        limit = _virtual() + 3 * MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        ended: Counter[str] = Counter()
        with out.open("a", encoding="utf-8") as lines, alarmed() as alarm:
            noted = watch(Path(scratch))
            for number in range(first, count):
                draw = random.Random(f"{name} {seed} {number}")
                data = broken(draw.choice(whole), draw)
                lines.write(json.dumps({"at": number}) + "\n")
                lines.flush()
                problem = ""
                try:
                    alarm()
                    ended[survive(reader, folder, data)] += 1
                except (Lost, MemoryError) as error:
                    problem = str(error) or type(error).__name__
                taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
                if taken > MOST_BYTES:
                    problem, before = f"took {taken >> 20} MiB", before + taken
                if noted:
                    problem = noted[0]
                    noted.clear()
                if problem:
                    lines.write(json.dumps({"lost": number, "why": problem}) + "\n")
            lines.write(json.dumps({"done": ended, "mib": max(0, taken) >> 20}) + "\n")


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def count_reader(name: str, seed: int, count: int) -> dict[str, object]:
    """Run `attack` in children until all inputs are through; a child that dies or hangs loses one input."""
    lost: dict[int, str] = {}
    ended: Counter[str] = Counter()
    first, mib = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "lines"
        while first < count:
            out.write_text("")
            command = [
                sys.executable,
                "-m",
                "tests.bench.hostile_readers",
                "--child",
                name,
                str(seed),
                str(first),
            ]
            child = subprocess.Popen([*command, str(count), str(out)], stdout=subprocess.DEVNULL)
            while child.poll() is None:
                time.sleep(0.2)
                # Beyond the alarm: it waits, or is stuck outside Python. Before its first line it only imports.
                if time.time() - out.stat().st_mtime > (
                    MOST_WAIT_S if out.stat().st_size else 10 * MOST_WAIT_S
                ):
                    child.kill()
            at = -1
            for line in map(json.loads, out.read_text().splitlines()):
                at = line.get("at", at)
                if "lost" in line:
                    lost[line["lost"]] = line["why"]
                if "done" in line:
                    ended.update(line["done"])
                    mib = max(mib, line["mib"])
                    at = count
            if at < count:
                if at < 0:
                    raise RuntimeError(f"{name} did not begin: exit {child.returncode}")
                lost[at] = f"its process died: {_died(child.returncode)}"
            first = at + 1
    kept = count - len(lost)
    return {
        "reader": name,
        "tried": count,
        "survived": kept,
        "refused": ended["error"],
        "mib": mib,
        "lost": lost,
    }


def _died(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit {status}"


def cover(name: str, seconds: int) -> None:
    """Drive one reader by atheris; what is lost stops it with a traceback and leaves the input as a file."""
    import atheris

    with tempfile.TemporaryDirectory() as scratch:
        folder, corpus = Path(scratch) / "own", Path(scratch) / "corpus"
        folder.mkdir()
        corpus.mkdir()
        reader = READERS[name]
        for number, data in enumerate(reader.seeds(folder)):
            (corpus / str(number)).write_bytes(data)
            survive(reader, folder, data)
        for package in [
            one
            for one in sys.modules
            if one.split(".")[0] in ("loader", "curate", "train", "pipelines", "yaml")
        ]:
            for value in list(vars(sys.modules[package]).values()):
                if getattr(value, "__module__", None) == package and hasattr(value, "__code__"):
                    atheris.instrument_func(value)
        options = [f"-max_total_time={seconds}", f"-timeout={MOST_S}", "-rss_limit_mb=3000", "-max_len=65536"]
        atheris.Setup([sys.argv[0], str(corpus), *options], lambda data: survive(reader, folder, data))
        atheris.Fuzz()


def main() -> None:
    """Attack every reader and print the table."""
    if sys.argv[1:2] == ["--child"]:
        name, seed, first, count, out = sys.argv[2:]
        attack(name, int(seed), int(first), int(count), Path(out))
        return
    if sys.argv[1:2] == ["--cover"]:
        cover(sys.argv[2], int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="inputs of each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], choices=list(READERS))
    parser.add_argument(
        "--coverage", type=int, default=0, metavar="S", help="seconds of atheris for each reader"
    )
    options = parser.parse_args()
    print(
        "| reader | tried | survived | of them refused in words | lost | most memory |\n|---|---|---|---|---|---|"
    )
    total: Counter[str] = Counter()
    for name in options.only or READERS:
        found = count_reader(name, options.seed, options.count)
        lost: dict[int, str] = found["lost"]  # type: ignore[assignment]
        total.update(
            tried=found["tried"], survived=found["survived"], refused=found["refused"], lost=len(lost)
        )
        cells = (name, found["tried"], found["survived"], found["refused"], len(lost), f"{found['mib']} MiB")
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        for why, times in Counter(lost.values()).most_common(5):
            example = next(number for number, one in lost.items() if one == why)
            print(f"  {name}: {times} x {why} (--seed {options.seed}, input {example})", file=sys.stderr)
    print(f"| **all** | {total['tried']} | {total['survived']} | {total['refused']} | {total['lost']} | |")
    for name in (options.only or READERS) if options.coverage else ():
        command = [
            sys.executable,
            "-m",
            "tests.bench.hostile_readers",
            "--cover",
            name,
            str(options.coverage),
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        last = [line for line in ran.stderr.splitlines() if line.startswith(("Done", "#"))][-1:]
        print(f"{name}: exit {ran.returncode}; {' '.join(last)}")
        if ran.returncode:
            print(ran.stderr[-3000:], file=sys.stderr)


if __name__ == "__main__":
    main()
