"""Take-downs: nothing of what is removed stays, nothing else is touched, and it is written down."""

from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.caption.types import Caption
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record, SourceSummary, clip_result, source_summary
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Removal, open_dataset, publish, verify, write_shard
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from tests.loader.dataset.test_dataset import make_sample, write
from tests.loader.dataset.test_revisions import accounted


def removal(**what: str) -> Removal:
    return Removal(date="2026-11-21", reason="on request", samples=0, **what)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    samples = [
        make_sample(
            number,
            source=f"raw/{number % 3}.mp4",
            start_s=float(number // 3),
            end_s=float(number // 3) + 1,
        )
        for number in range(9)
    ]
    return write(tmp_path / "dataset", samples, max_shard_bytes=12_000)


def holds(folder: Path, data: bytes) -> bool:
    return any(data in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_one_sample_goes_and_only_its_shard_changes(folder: Path) -> None:
    gone = make_sample(4)
    shard = next(
        row["shard"] for row in open_dataset(folder).index.to_pylist() if row["key"] == gone.row["key"]
    )
    others = {
        path: path.read_bytes() for path in folder.glob("shards/*.tar") if not str(path).endswith(shard)
    }
    done = remove(open_storage(folder), removal(key=gone.row["key"]))
    assert (done.samples, done.shards_rewritten) == (1, 1)
    assert verify(open_storage(folder)).problems == []
    assert not holds(folder, gone.clip[:200])
    assert all(path.read_bytes() == data for path, data in others.items())
    rows = {row["key"]: row for row in open_dataset(folder).accounting.to_pylist()}
    assert rows[gone.row["key"]]["state"] == "filtered"
    assert "taken down on 2026-11-21: on request" in rows[gone.row["key"]]["reason"]


def test_clips_of_the_same_bytes_under_another_name_that_show_the_same_seconds_go_with_it(
    tmp_path: Path,
) -> None:
    spans = {1: ("a.mp4", 0.0, 2.0), 2: ("b.mp4", 1.0, 2.5), 3: ("b.mp4", 2.5, 4.0), 4: ("c.mp4", 0.0, 2.0)}
    samples = [
        make_sample(
            number, source=source, source_sha256=f"{source == 'c.mp4':064x}", start_s=start_s, end_s=end_s
        )
        for number, (source, start_s, end_s) in spans.items()
    ]
    folder = write(tmp_path / "dataset", samples)
    keys = {number: make_sample(number).row["key"] for number in spans}
    done = remove(open_storage(folder), removal(key=keys[1]))
    assert (done.samples, done.overlapping, done.copies) == (2, (keys[2],), ())
    assert sorted(row["key"] for row in open_dataset(folder).index.to_pylist()) == sorted([keys[3], keys[4]])
    assert verify(open_storage(folder)).problems == []


def test_a_shard_written_anew_replaces_no_other_however_many_there_are(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    shards = [
        write_shard(storage, number, [make_sample(number % 97), make_sample(number % 97 + 1)])
        for number in (100_001, 1_000_000)
    ]
    publish(storage, shards, accounted(shards))
    remove(storage, removal(key=make_sample(1_000_000 % 97).row["key"]))
    numbers = [shard.path.partition("-")[0] for shard in open_dataset(tmp_path).shards()]
    assert numbers == ["shards/100001", "shards/1000001"]
    assert verify(storage).problems == []


def test_a_source_goes_with_all_its_samples_and_is_recorded(folder: Path) -> None:
    done = remove(open_storage(folder), removal(source="raw/1.mp4"))
    assert done.samples == 3
    assert verify(open_storage(folder)).problems == []
    assert not any(holds(folder, make_sample(number).clip[:200]) for number in (1, 4, 7))
    rows = [row for row in open_dataset(folder).accounting.to_pylist() if row["source"] == "raw/1.mp4"]
    assert [(row["state"], row["start_s"]) for row in rows] == [("filtered", None)]
    assert [entry.samples for entry in open_dataset(folder).manifest.removals] == [3]


def test_a_list_goes_at_once_and_unknown_keys_are_counted(folder: Path) -> None:
    gone = [make_sample(number).row["key"] for number in (1, 2, 4)]
    before = open_dataset(folder).manifest
    done = remove(open_storage(folder), *(removal(key=key) for key in [*gone, "nobody"]))
    assert (done.samples, done.unknown, done.foreign) == (3, ("nobody",), False)
    manifest = open_dataset(folder).manifest
    assert manifest.revision == before.revision + 1
    assert [(one.key, one.samples) for one in manifest.removals] == [(key, 1) for key in gone]
    assert verify(open_storage(folder)).problems == []
    assert not any(holds(folder, make_sample(number).clip[:200]) for number in (1, 2, 4))
    nothing = remove(open_storage(folder), removal(key="nobody"), removal(key="no one"))
    assert (nothing.samples, nothing.manifest.revision) == (0, manifest.revision)


def test_everything_may_go(folder: Path) -> None:
    for number in range(3):
        remove(open_storage(folder), removal(source=f"raw/{number}.mp4"))
    assert verify(open_storage(folder)).problems == []
    assert open_dataset(folder).index.num_rows == 0
    assert list(folder.glob("shards/*")) == []


def test_removing_twice_changes_nothing(folder: Path) -> None:
    remove(open_storage(folder), removal(source="raw/1.mp4"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = remove(open_storage(folder), removal(source="raw/1.mp4"))
    assert done.samples == 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_ledger_keeps_nothing_of_it(folder: Path) -> None:
    gone, stays = make_sample(1).row["key"], make_sample(2).row["key"]
    ledger = Ledger(open_storage(folder))
    for place, key in enumerate((gone, stays), 1):
        record = Record(f"raw/{place}.mp4", start_s=0.0, end_s=1.0, key=key, sha256="1234")
        ledger.blobs.write_clip(f"{key}-1234", b"clip")
        ledger.entries.write("cut", "c", f"s{place}", SourceSummary((record,)))
        ledger.entries.write("captions", "a", f"{key}-1234-x", Caption("a kite", "input"))
        ledger.blobs.write_arrays(f"s{place}-c", {f"{key}-1234.perceptual": np.ones(2, np.float16)})
    ledger.entries.write("cut", "c", "s3", SourceSummary((Record("raw/3.mp4", key="other", sha256="1234"),)))
    ledger.storage.write(".ledger/arrays/s3-c.npz", b"no arrays: those of other sources are not read")
    remove(open_storage(folder), removal(source="raw/1.mp4"))
    assert list(ledger.blobs.staged_clips()) == [f"{stays}-1234"]
    assert ledger.entries.read("captions", "a", clip_result).keys() == {f"{stays}-1234-x"}
    assert ledger.blobs.read_arrays("s2-c").keys() == {f"{stays}-1234.perceptual"}
    assert ledger.entries.read("cut", "c", source_summary).keys() == {"s2", "s3"}


def test_what_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"knows no source raw/9\.mp4"):
        remove(open_storage(folder), removal(source="raw/9.mp4"))
