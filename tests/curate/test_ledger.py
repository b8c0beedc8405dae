"""The ledger: entries by stage and configuration, many of them in few files, arrays without pickles."""

from pathlib import Path

import numpy as np
import pytest

from curate.config import CurateConfig, SourceStageConfig, fingerprint
from curate.ledger import Ledger, digest
from loader.errors import RunError
from loader.storage import open_storage


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_storage(tmp_path))


def files(ledger: Ledger) -> int:
    return len(list(ledger.storage.list(".ledger/captions/")))


def test_another_configuration_has_done_nothing(ledger: Ledger) -> None:
    ledger.close("captions", "short", "clip1", {"text": "a kite"})
    assert ledger.closed("captions", "short") == {"clip1": {"text": "a kite"}}
    assert ledger.closed("captions", "long") == {}
    assert ledger.closed("embed", "short") == {}


def test_many_entries_become_one_file_and_later_ones_win(ledger: Ledger) -> None:
    for number in range(300):
        ledger.close("captions", "a", f"clip{number}", {"text": f"number {number} ж ü"})
    ledger.pack("captions", "a")
    assert files(ledger) == 1
    ledger.close("captions", "a", "clip7", {"text": "new"})
    found = ledger.closed("captions", "a")
    assert len(found) == 300
    assert found["clip7"] == {"text": "new"}
    assert found["clip8"] == {"text": "number 8 ж ü"}


def test_a_pack_that_was_killed_before_it_tidied_costs_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(300):
        ledger.close("captions", "a", f"clip{number}", {"n": number})
    before = ledger.closed("captions", "a")
    with monkeypatch.context() as patched:
        patched.setattr(type(ledger.storage), "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ledger.pack("captions", "a")
    assert ledger.closed("captions", "a") == before
    ledger.pack("captions", "a")
    assert ledger.closed("captions", "a") == before


def test_what_is_forgotten_is_gone_from_packs_too(ledger: Ledger) -> None:
    for number in range(300):
        ledger.close("captions", "a", f"k{number}-x", {"n": number})
    ledger.pack("captions", "a")
    ledger.close("captions", "a", "k300-x", {"n": 300})
    ledger.forget("captions", "a", lambda identity: identity in ("k5-x", "k300-x"))
    left = ledger.closed("captions", "a")
    assert len(left) == 299
    assert not {"k5-x", "k300-x"} & left.keys()


def test_clips_and_arrays_come_back(ledger: Ledger) -> None:
    ledger.write_clip("k1-s", b"clip")
    assert ledger.read_clip("k1-s") == b"clip"
    assert ledger.staged_clips() == {"k1-s"}
    ledger.drop_clips(["k1-s", "never-there"])
    assert ledger.staged_clips() == set()
    with pytest.raises(FileNotFoundError):
        ledger.read_clip("k1-s")
    arrays = {"k1-s.perceptual": np.arange(6, dtype=np.float16), "k2-s.perceptual": np.ones(3, np.float32)}
    ledger.write_arrays("source", arrays)
    ledger.forget_arrays(lambda name: name.startswith("k2-"), ["source"])
    found = ledger.read_arrays("source")
    assert found.keys() == {"k1-s.perceptual"}
    assert found["k1-s.perceptual"].dtype == np.float16
    assert ledger.read_arrays("nothing") == {}


def test_an_array_file_with_a_pickle_in_it_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / ".ledger/arrays").mkdir(parents=True)
    np.savez(tmp_path / ".ledger/arrays/evil.npz", a=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(RunError, match=r"evil\.npz is damaged .*allow_pickle"):
        ledger.read_arrays("evil")


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"3", b"\xff"])
def test_a_damaged_entry_is_named(ledger: Ledger, tmp_path: Path, data: bytes) -> None:
    ledger.close("cut", "f", "one", {"a": 1})
    [path] = tmp_path.rglob("one.json")
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"one\.json is damaged .*; remove it"):
        ledger.closed("cut", "f")


def test_identities_tell_parts_apart() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_code_that_gives_other_clips_starts_another_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CurateConfig()
    cut, captions = fingerprint(config.source_stage()), fingerprint(config.captions)
    monkeypatch.setattr(SourceStageConfig, "REVISION", SourceStageConfig.REVISION + 1)
    assert fingerprint(config.source_stage()) != cut
    assert fingerprint(config.captions) == captions
