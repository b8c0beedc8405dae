"""The page of the matrix of faults: one row per fault, one column per runner and storage."""

from collections.abc import Sequence
from datetime import UTC, datetime

COLUMNS = (("sequential", "local"), ("sequential", "s3"), ("ray", "local"), ("ray", "s3"))
NAMES = {
    "run": "the whole command killed (SIGKILL, its session) one to three times; under Ray once or twice",
    "worker": "a decoding child, or a worker of Ray, killed up to twice",
    "s3": "12 faults of S3: 503s, connections reset or cut off, answers lost after the write",
    "s3+kill": "12 faults of S3, and the whole command killed one to three times",
    "two": "a second run at once, of the same or other settings; on S3 the first stopped and continued in 3 of 10",
    "disk": "a disk that is full, over and over, and grows after each stop",
    "clock": "the wall clock set forward and back by up to three years, killed once in every second run",
}

_HEAD = """# Exactly once under faults

{date}, 2-core CPU VM that other work shared, Python 3.11, Ray 2.60: {runs} runs of

    python -m tests.bench.exactly_once run --results results.jsonl --runs 100 --others 20
    python -m tests.bench.exactly_once table --results results.jsonl

Five small sources (one shot, two shots, a copy, one cut off, one empty) are curated once without disturbance on each
storage, and then over and over with it, at random moments of their progress: counted in files that came and went, or in
requests that write. After a stop the same command is started again, as a person would. A run is right when every file
of the dataset, byte for byte, is that of the undisturbed run, the dataset verifies, its accounting names every source,
and the output holds the very files that an undisturbed run leaves, those of the ledger too but for the note of how long
it took. Seeds are in the results.
S3 is moto over HTTP; Ray is one cluster of two processors that stays while its drivers die. One run in four decodes in
child processes, as is the default; those in which workers are killed all do.

Each cell: **runs** (times the fault struck), and how many were wrong, if any was. An empty one was not run yet, or
makes no sense.

"""

_TAIL = """
Not tried: machines that lose power (everything is synced before it is named; nothing here proves it), S3 of AWS itself,
several machines, films of hours. Wall clocks jump by libfaketime, in the command alone and not in the workers of Ray's
cluster. A fault may find a run at its end already, so that it strikes less often than there are runs. Where a second
run had other settings, and the first was stopped with its tables written, the numbers of revisions may differ: the
second does not replace what the first may still publish.

What the runs found before they all came out right: a child killed in the moment it was starting stopped the run with a
traceback; it is started again now, and counts against no source. Two runs with different settings damaged the dataset;
a lease keeps them apart ([notes/lease.md](../notes/lease.md)).

Before this matrix, on 2026-11-21, there were 100 runs of five kinds of fault, 20 each: whole runs killed (56 kills, all
sequential and on a local disk), children killed, faults of S3, a full disk, workers of Ray killed. None was wrong.
"""


def page(results: Sequence[dict[str, object]]) -> str:
    """Return the page in Markdown."""
    lines = [
        "| fault | " + " | ".join(f"{runner}, {storage}" for runner, storage in COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    for fault, name in NAMES.items():
        cells = [_cell([one for one in results if one["cell"] == f"{fault}/{a}/{b}"]) for a, b in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    wrong = [one for one in results if one["wrong"]]
    struck = sum(int(str(one["struck"])) for one in results)
    verdict = f"\n**Wrong: {len(wrong)} of {len(results)} runs**, {struck} faults in all.\n"
    for one in wrong:
        verdict += f"\n- `{one['seed']}`: {' '.join(str(one['wrong']).split())[:300]}\n"
    head = _HEAD.format(date=datetime.now(UTC).date().isoformat(), runs=len(results))
    return head + "\n".join(lines) + "\n" + verdict + _TAIL


def _cell(results: Sequence[dict[str, object]]) -> str:
    if not results:
        return ""
    struck = sum(int(str(one["struck"])) for one in results)
    wrong = sum(bool(one["wrong"]) for one in results)
    return f"**{len(results)}** ({struck})" + (f", {wrong} wrong" if wrong else "")
