"""Fuzzed films, sidecars and lists through curation: each is accounted for, and costs the others nothing.

Inputs are made from a seed: small real films with bytes changed, cut out, doubled and joined, under names that hurt;
sidecars and lists likewise. A trial is lost when an error other than ours ends it, a source has no final state or a
right one is not kept, the input changes, or it takes longer than MOST_S.

    python -m tests.bench.hostile_sources --films 300 --lists 3000 --seed 1
"""

import argparse
import io
import json
import random
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.curate.sources.inputs import list_sources
from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig
from tests.media import write_video

MOST_S = 10.0
CONFIG = CurateConfig.model_validate(
    {
        "spans": {"min_clip_s": 0.5},
        "filters": {"min_short_side_px": 0, "min_duration_s": 0},
        "run": {"runner": "sequential", "max_source_s": 60.0},
    }
)
STATES = {"kept", "filtered", "duplicate", "failed"}

_FILMS = {".mp4": "libx264", ".mkv": "libx264", ".ts": "libx264", ".avi": "mpeg4", ".mov": "mpeg4"}
_NAMES = (
    *("{}", "\x1b[2J{}", "{}\n", "-{}", "[red]{}", "\u202e{}", "a\\{}", "\\{}"),
    *("e\u0301{}", "\u00e9{}", "{}" + "x" * 200),
)
_PARTS = (
    *(
        "http://",
        "https://",
        "s3://",
        "file://",
        "ftp://",
        "//",
        "/",
        "\\",
        "..",
        ".",
        "~",
        "[::1",
        "[",
        "]",
        "@",
    ),
    *(
        ":",
        "#",
        "?",
        "%00",
        "%2e%2e",
        "u:pw@",
        "host",
        "a.mp4",
        "\0",
        "\n",
        "\ud800",
        "\u2100",
        "-",
        " ",
        "x" * 300,
    ),
)
_JSON = (
    *(
        "[" * 2000,
        "{" * 50,
        "null",
        "NaN",
        "9" * 5000,
        '"\\ud800"',
        "true",
        "{}",
        '{"path":',
        '"path"',
        ":",
        ",",
    ),
    *("1e999", "[[]]"),
)


@dataclass
class Result:
    """Counts of one campaign.

    Attributes:
        tried: inputs by kind.
        lost: one line for each trial that broke a promise.
        states: sources of fuzzed films by final state.
        slowest_s: longest trial of a list, seconds.
    """

    tried: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0


def changed(data: bytes, rng: random.Random) -> bytes:
    """The bytes after a few changes at random places."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at, size = rng.randrange(len(out) + 1), rng.choice((1, 4, 64, 1024))
        kind = rng.randrange(5)
        if kind == 0:
            out[at : at + size] = rng.randbytes(min(size, len(out) - at))
        elif kind == 1:
            del out[at : at + size]
        elif kind == 2:
            out[at:at] = out[at : at + size]
        elif kind == 3:
            out[at : at + 4] = rng.choice(
                (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\1")
            )
        else:
            del out[at:]
    return bytes(out)


def put_films(folder: Path, count: int, rng: random.Random) -> set[str]:
    """Fuzzed films among right ones, each with a fuzzed sidecar; returns the names of the right ones."""
    folder.mkdir()
    good = {}
    for number, (suffix, codec) in enumerate(_FILMS.items()):
        path = write_video(folder / f"good{suffix}", (16,), size=(96, 64), codec=codec, first_scene=number)
        good[suffix] = path.read_bytes()
    for number in range(count):
        suffix = rng.choice([*good])
        name = rng.choice(_NAMES).format(f"{number}")
        (folder / f"{name}{suffix}").write_bytes(changed(good[suffix], rng))
        sidecar = changed(b'{"caption": "A boat on the lake at noon.", "licence": "CC0"}', rng)
        text = rng.choice((sidecar, rng.choice(_JSON).encode("utf-8", "replace") * rng.randint(1, 50)))
        (folder / f"{name}{rng.choice(('.txt', '.json'))}").write_bytes(text)
    return {f"good{suffix}" for suffix in good}


def try_films(folder: Path, count: int, seed: int, result: Result) -> None:
    """Curate fuzzed films and check that every one has its final state."""
    raw = folder / "raw"
    good = put_films(raw, count, random.Random(seed))
    before = _content(raw)
    sources = {source.uri for source in list_sources([str(raw)], CONFIG.storage)}
    result.tried["films"] += count
    result.tried["sidecars"] += count
    try:
        curate([str(raw)], str(folder / "out"), CONFIG)
    except Exception as error:  # noqa: BLE001 - any is a loss
        result.lost.append(f"films of seed {seed}: {type(error).__name__}: {error}")
        return
    rows = open_dataset(folder / "out").accounting.to_pylist()
    states: dict[str, set[str]] = {}
    for row in rows:
        states.setdefault(row["source"], set()).add(row["state"])
        if row["state"] not in STATES or (row["state"] == "failed" and not row["reason"]):
            result.lost.append(f"{row['source']!r}: {row['state']} {row['reason']!r}")
        if "please report it" in row["reason"]:
            result.lost.append(f"{row['source']!r} of seed {seed}: {row['reason']}")
    spans = Counter((row["source"], row["start_s"]) for row in rows)
    result.lost += [
        f"{source!r} is accounted for twice at {at}" for (source, at), n in spans.items() if n > 1
    ]
    result.lost += [f"{name!r} has no final state" for name in sources - states.keys()]
    result.lost += [f"{name!r} is no source" for name in states.keys() - sources]
    result.lost += [
        f"{name} is {states[f'{raw}/{name}']}" for name in good if states[f"{raw}/{name}"] == {"failed"}
    ]
    if _content(raw) != before:
        result.lost.append(f"the input of seed {seed} changed")
    for found in states.values():
        result.states["failed" if found == {"failed"} else "some clips"] += 1


def lists(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Fuzzed lists without end: (suffix, bytes)."""
    while True:
        paths = ["".join(rng.choices(_PARTS, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 5))]
        yield ".txt", "\n".join(paths).encode("utf-8", "replace")
        objects = [json.dumps({"path": path, "caption": path, "k": [path]}) for path in paths]
        yield ".jsonl", changed("\n".join(objects).encode("utf-8", "replace"), rng)
        yield ".jsonl", "".join(rng.choices(_JSON, k=rng.randint(1, 9))).encode()
        yield (
            ".csv",
            changed(
                ("path,caption\n" + "\n".join(f'"{path}",x' for path in paths)).encode("utf-8", "replace"),
                rng,
            ),
        )
        sink = io.BytesIO()
        pq.write_table(pa.table({"path": [path.encode("utf-8", "replace").decode() for path in paths]}), sink)
        yield ".parquet", changed(sink.getvalue(), rng)


def try_lists(folder: Path, count: int, seed: int, result: Result) -> None:
    """Read fuzzed lists. No name in them is resolved, and no connection made."""
    config = StorageConfig(max_attempts=1)
    (folder / "good.mp4").write_bytes(b"x")
    made = lists(random.Random(seed))
    for number in range(count):
        suffix, data = next(made)
        path = folder / f"list{suffix}"
        path.write_bytes(data)
        result.tried[f"lists {suffix}"] += 1
        began = time.monotonic()
        with patch("socket.getaddrinfo", _refuse), patch.object(socket.socket, "connect", _refuse):
            problem = _ends(lambda path=path: list_sources([str(path)], config))
        spent = time.monotonic() - began
        result.slowest_s = max(result.slowest_s, spent)
        if problem or spent > MOST_S:
            result.lost.append(f"list {number} of seed {seed} ({suffix}, {spent:.1f} s): {problem}")


def _refuse(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_NONAME, "nothing is asked of the network")


def _ends(call: Callable[[], object]) -> str:
    try:
        call()
    except (UsageError, RunError) as error:
        return "the password is shown" if "pw" in str(error) else ""
    except Exception as error:  # noqa: BLE001 - any is a loss
        return f"{type(error).__name__}: {error}"
    return ""


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prove(folder: Path, films: int, lists: int, seed: int) -> Result:
    """One campaign below ``folder``."""
    result = Result()
    try_lists(folder, lists, seed, result)
    try_films(folder, films, seed, result)
    return result


def main() -> None:
    """Print a campaign's counts as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--films", type=int, default=300)
    parser.add_argument("--lists", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reelweave-hostile-") as place:
        print(json.dumps(vars(prove(Path(place), options.films, options.lists, options.seed)), indent=2))


if __name__ == "__main__":
    main()
