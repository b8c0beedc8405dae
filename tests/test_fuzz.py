"""Broken inputs of every reader: each gives a result, or an error of ours in words; the same inputs every time.

`python -m tests.bench.hostile_readers` tries thousands of each, in processes with limits.
"""

import random
from pathlib import Path

import pytest

from tests.fuzz.attack import Lost, alarmed, broken, survive
from tests.fuzz.readers import READERS, Reader

FEW = {"dataset": 6, "checkpoint": 6}  # that write whole folders


@pytest.mark.parametrize("name", READERS)
def test_a_broken_input_is_a_result_or_an_error_in_words(name: str, tmp_path: Path) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    reader, folder = READERS[name], tmp_path / "own"
    folder.mkdir()
    whole = reader.seeds(folder)
    survive(reader, folder, whole[0])  # imports take their time once

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=FEW.get(name.split(":")[0], 15),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(whole), st.integers(0, 2**32))
    def attack(data: bytes, seed: int) -> None:
        alarm()
        survive(reader, folder, broken(data, random.Random(seed)))

    with alarmed() as alarm:
        attack()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("list: jsonl", b'{"": "a.mp4"}'),
        ("trace", b'{"gpus": 8, "steps": [[{"frames": 9, "height": 480, "width": 18446744073709551616}]]}'),
        ("cost models and topologies", b'{"columns": [[], "module"], "rows": [[1, 2]]}'),
        (
            "cost models and topologies",
            b'{"columns": ["module","frames","degree","seconds"],"rows": [[[],1,1,1]]}',
        ),
        ("description of a model", b"[" * 100_000),
        ("timings and cost tables", b"batch,length,step_s\n1\r2,3,4\n"),
        ("records of a run", b'\xff\n[[\n{"step": NaN}\n' + b"[" * 100_000),
        ("S3 listing", b"<x"),
        ("S3 listing", b"&151"),  # status 301, however often it is asked
        ("S3 listing", b"&459"),  # status 404
        ("address", b"https://h/\xff"),
    ],
)
def test_what_was_lost_once_is_survived(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    assert survive(READERS[name], tmp_path / "own", data)


def test_whole_inputs_are_read(tmp_path: Path) -> None:
    """Else the others would prove nothing."""
    for name in (
        "tar",
        "dataset: manifest",
        "dataset: shard",
        "plan",
        "loader state",
        "blend",
        "list: parquet",
        "trace",
    ):
        reader, folder = READERS[name], tmp_path / name.replace(" ", "")
        folder.mkdir()
        assert survive(reader, folder, reader.seeds(folder)[0]) == "result", name


def test_what_is_lost_is_told(tmp_path: Path) -> None:
    def hang(folder: Path, data: bytes) -> None:
        while True:
            pass

    def trip(folder: Path, data: bytes) -> None:
        raise KeyError("x")

    with pytest.raises(Lost, match="KeyError"):
        survive(Reader(trip, lambda folder: []), tmp_path, b"")
    with alarmed(0.2) as alarm, pytest.raises(Lost, match=r"more than 0\.2 s"):
        alarm()
        survive(Reader(hang, lambda folder: []), tmp_path, b"")
