"""The ledger: entries by stage and configuration, many of them in few files, arrays without pickles."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from reelweave.curate.caption.types import Caption
from reelweave.curate.config import CurateConfig, SourceStageConfig, config_digest
from reelweave.curate.ledger.digest import digest
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipResult, Record, SourceSummary, clip_result, source_summary
from reelweave.curate.models.clip_frames import Fault
from reelweave.loader.errors import RunError
from reelweave.loader.storage import open_storage


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_storage(tmp_path))


def captions(ledger: Ledger, fingerprint: str = "a") -> dict[str, ClipResult]:
    found = ledger.entries.read("captions", fingerprint, clip_result)
    one_by_one = list(ledger.entries.latest("captions", fingerprint, clip_result))
    assert len(one_by_one) == len(found)
    assert dict(one_by_one) == found
    return found


def files(ledger: Ledger) -> int:
    return len(list(ledger.storage.list(".ledger/captions/")))


def test_another_configuration_has_done_nothing(ledger: Ledger) -> None:
    ledger.entries.write("captions", "short", "clip1", Caption("a kite", "input"))
    assert captions(ledger, "short") == {"clip1": Caption("a kite", "input")}
    assert captions(ledger, "long") == {}
    assert ledger.entries.read("embed", "short", clip_result) == {}


def test_many_entries_become_one_file_and_later_ones_win(ledger: Ledger) -> None:
    for number in range(300):
        ledger.entries.write("captions", "a", f"clip{number}", Caption(f"number {number} ж ü", "input"))
    ledger.entries.pack("captions", "a", clip_result)
    assert files(ledger) == 1
    ledger.entries.write("captions", "a", "clip7", Caption("new", "input"))
    found = captions(ledger)
    assert len(found) == 300
    assert found["clip7"] == Caption("new", "input")
    assert found["clip8"] == Caption("number 8 ж ü", "input")


def test_a_pack_that_was_killed_before_it_tidied_costs_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        ledger.entries.write("captions", "a", f"clip{number}", Caption(str(number), "input"))
    before = captions(ledger)
    with monkeypatch.context() as patched:
        patched.setattr(
            type(ledger.storage), "delete_many", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            ledger.entries.pack("captions", "a", clip_result)
        with pytest.raises(KeyboardInterrupt):
            ledger.entries.append("captions", "a", {"clip7": Caption("7", "input")})
    assert captions(ledger) == before
    ledger.entries.pack("captions", "a", clip_result)
    assert captions(ledger) == before


def test_segments_are_read_in_order_and_loose_entries_win(ledger: Ledger) -> None:
    for text in ("old", "new"):
        for number in range(3):
            ledger.entries.write("captions", "a", f"clip{number}", Caption(f"{text} {number}", "input"))
        ledger.entries.append(
            "captions", "a", {f"clip{number}": Caption(f"{text} {number}", "input") for number in (1, 2)}
        )
    assert files(ledger) == 3  # two segments, and the entry that is in none of them
    ledger.entries.write("captions", "a", "clip2", Caption("newest", "input"))
    assert {one: found.text for one, found in captions(ledger).items() if isinstance(found, Caption)} == {
        "clip0": "new 0",
        "clip1": "new 1",
        "clip2": "newest",
    }


def test_what_is_forgotten_is_gone_from_packs_too(ledger: Ledger) -> None:
    for number in range(300):
        ledger.entries.write("captions", "a", f"k{number}-x", Caption(str(number), "input"))
    ledger.entries.pack("captions", "a", clip_result)
    ledger.entries.write("captions", "a", "k300-x", Caption("300", "input"))
    ledger.entries.forget("captions", "a", lambda identity: identity in ("k5-x", "k300-x"))
    left = captions(ledger)
    assert len(left) == 299
    assert not {"k5-x", "k300-x"} & left.keys()


def test_clips_and_arrays_come_back(ledger: Ledger) -> None:
    ledger.blobs.write_clip("k1-s", b"clip")
    assert ledger.blobs.read_clip("k1-s") == b"clip"
    assert list(ledger.blobs.staged_clips()) == ["k1-s"]
    ledger.blobs.drop_clips(["k1-s", "never-there"])
    assert list(ledger.blobs.staged_clips()) == []
    with pytest.raises(FileNotFoundError):
        ledger.blobs.read_clip("k1-s")
    arrays = {"k1-s.perceptual": np.arange(6, dtype=np.float16), "k2-s.perceptual": np.ones(3, np.float32)}
    ledger.blobs.write_arrays("source", arrays)
    ledger.blobs.forget_arrays(lambda name: name.startswith("k2-"), ["source"])
    found = ledger.blobs.read_arrays("source")
    assert found.keys() == {"k1-s.perceptual"}
    assert found["k1-s.perceptual"].dtype == np.float16
    assert ledger.blobs.read_arrays("nothing") == {}


def test_an_array_file_with_a_pickle_in_it_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / ".ledger/arrays").mkdir(parents=True)
    np.savez(tmp_path / ".ledger/arrays/evil.npz", a=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(RunError, match=r"evil\.npz is damaged .*allow_pickle"):
        ledger.blobs.read_arrays("evil")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"3",
        b"\xff",
        b"{}",
        b'{"records": [{"part": 1}]}',
        b'{"records": [{"source": 3}]}',
    ],
)
def test_a_damaged_entry_is_named(ledger: Ledger, tmp_path: Path, data: bytes) -> None:
    ledger.entries.write("cut", "f", "one", SourceSummary((Record("a.mp4"),)))
    [path] = tmp_path.rglob("one.json")
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"one\.json is damaged .*; remove it"):
        ledger.entries.read("cut", "f", source_summary)


def test_segments_of_earlier_versions_are_read_and_damaged_ones_named(ledger: Ledger, tmp_path: Path) -> None:
    ledger.entries.append("captions", "a", {"clip0": Caption("new", "input"), "clip1": Fault("mute")})
    folder = tmp_path / ".ledger/captions/a/packed"
    line = {"id": "clip0", "row": {"text": "old", "source": "input", "provenance": {}}}
    other = {"id": "clip2", "row": {"text": "ж", "source": "model:m", "provenance": {"seed": "1"}}}
    lines = "\n".join(json.dumps(one, ensure_ascii=False) for one in (line, other))
    folder.joinpath("000000.parquet").rename(folder / "000001.parquet")
    folder.joinpath("000000.jsonl").write_bytes(gzip.compress(lines.encode()))
    assert captions(ledger) == {
        "clip0": Caption("new", "input"),
        "clip1": Fault("mute"),
        "clip2": Caption("ж", "model:m", {"seed": "1"}),
    }
    ledger.entries.forget("captions", "a", lambda identity: identity in ("clip0", "clip1"))
    assert captions(ledger).keys() == {"clip2"}
    folder.joinpath("000001.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(RunError, match=r"000001\.parquet is damaged .*; remove it"):
        captions(ledger)
    with pytest.raises(RunError, match=r"000001\.parquet is damaged .*; remove it"):
        list(ledger.entries.tables("captions", "a", clip_result))


def test_identities_tell_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_code_that_gives_other_clips_starts_another_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CurateConfig()
    cut, captions = config_digest(config.source_stage()), config_digest(config.captions)
    monkeypatch.setattr(SourceStageConfig, "REVISION", SourceStageConfig.REVISION + 1)
    assert config_digest(config.source_stage()) != cut
    assert config_digest(config.captions) == captions


def test_memory_that_is_not_granted_is_no_damage_of_the_ledger(tmp_path: Path) -> None:
    """Advice to remove a whole file would cost what it holds."""
    storage = open_storage(tmp_path)
    Ledger(storage).blobs.write_table("big", pa.table({"id": ["a"], "data": [os.urandom(64 << 20)]}))
    code = f"""
import resource
from reelweave.curate.ledger.ledger import Ledger
from reelweave.loader.storage import open_storage
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (80 << 20), -1))
try:
    Ledger(open_storage({str(tmp_path)!r})).blobs.read_table("big")
except Exception as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.startswith("MachineError this machine grants no more memory"), (
        said.stdout + said.stderr
    )
    assert "damaged" not in said.stdout
    assert "big" in said.stdout
