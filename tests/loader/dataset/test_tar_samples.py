"""Tars of every writer: what our parser finds is what tarfile and webdataset find."""

import io
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset

from reelweave.loader.dataset.tars.tar_samples import read_sample
from reelweave.loader.dataset.tars.tar_scan import TarSample, TarScan
from reelweave.loader.errors import RunError
from tests.foreign_tars import by_tarfile, by_webdataset

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
LONG = "folder/" * 13 + "part-"  # in USTAR the name is cut in two
LONGER = "a folder with é/" * 30


def samples(prefix: str = "", count: int = 7) -> list[tuple[str, dict[str, bytes]]]:
    rng = np.random.default_rng(3)
    sizes = {"json": 300, "txt": 0, "seg.PNG": 512, "mp4": 20_000}
    return [
        (
            f"{prefix}{number:04d}",
            {suffix: rng.bytes(size and size + number) for suffix, size in sizes.items()},
        )
        for number in range(count)
    ]


def scan(data: bytes, **options: int) -> tuple[list[TarSample], TarScan]:
    found = TarScan(io.BytesIO(data), **options)
    return list(found), found


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("prefix", ["", "a.b/c/", LONG, LONGER])
def test_every_format_gives_what_tarfile_and_webdataset_read(tmp_path: Path, kind: int, prefix: str) -> None:
    if kind == tarfile.USTAR_FORMAT and prefix == LONGER:
        pytest.skip("USTAR holds no such name")
    path = by_tarfile(tmp_path / "x.tar", samples(prefix), kind)
    data = path.read_bytes()
    found, whole = scan(data)
    assert whole.damage == []
    with tarfile.open(path) as tar:
        infos = tar.getmembers()
    assert [(member.offset, member.size) for sample in found for member in sample.members] == [
        (info.offset_data, info.size) for info in infos
    ]
    assert [sample.offset for sample in found] == [info.offset for info in infos[::4]]
    others = list(webdataset.WebDataset(str(path), shardshuffle=False))
    assert len(others) == len(found) == 7
    for sample, other in zip(found, others, strict=True):
        key, contents = read_sample(data[sample.offset : sample.offset + sample.size])
        assert key == sample.key == other["__key__"]
        assert {suffix: bytes(content) for suffix, content in contents.items()} == {
            suffix: content for suffix, content in other.items() if not suffix.startswith("__")
        }
        assert sample.region == data[sample.offset : sample.offset + sample.size]


def test_shard_writers_tars_are_read(tmp_path: Path) -> None:
    path = by_webdataset(tmp_path / "x.tar", samples())
    found, whole = scan(path.read_bytes())
    assert [sample.key for sample in found] == [key for key, _ in samples()]
    assert whole.size == path.stat().st_size


def test_folders_links_and_meta_belong_to_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:

        def add(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, "elsewhere"
            tar.addfile(info, io.BytesIO(content))

        add("__meta__/about.json", b"{}" * 400)
        add("set", kind=tarfile.DIRTYPE)
        add("set/a.txt", b"one")
        add("set/link.mp4", kind=tarfile.SYMTYPE)
        add("set/README", b"no suffix" * 100)
        add("set/a.mp4", b"two")
        add("set/.hidden", b"three")
        add("set/b.mp4", b"four")
    found, whole = scan(path.read_bytes())
    assert [(sample.key, [member.suffix for member in sample.members]) for sample in found] == [
        ("set/a", ["txt", "mp4"]),
        ("set/", ["hidden"]),
        ("set/b", ["mp4"]),
    ]
    assert whole.damage == []
    assert found[0].region is not None
    assert {suffix: bytes(content) for suffix, content in read_sample(found[0].region)[1].items()} == {
        "txt": b"one",
        "mp4": b"two",
    }


def test_a_cut_tar_keeps_what_lies_before_the_cut(tmp_path: Path) -> None:
    data = by_tarfile(tmp_path / "x.tar", samples(LONGER), tarfile.PAX_FORMAT).read_bytes()
    whole, _ = scan(data)
    for cut in range(100, whole[-1].offset + whole[-1].size, 3_333):
        found, end = scan(data[:cut])
        usable = [sample for sample in found if not sample.problem]
        complete = [sample for sample in whole if sample.offset + sample.size <= cut]
        assert usable[: len(complete)] == complete
        for sample in usable[len(complete) :]:  # cut between two of its members, which nothing tells
            full = whole[len(complete)]
            assert sample.offset == full.offset
            assert sample.members == full.members[: len(sample.members)]
        assert all(sample.size == 0 for sample in found if sample.problem)
        assert len(end.damage) == 1
        assert end.size == cut


def test_a_cut_between_samples_is_told_by_the_missing_mark(tmp_path: Path) -> None:
    data = by_tarfile(tmp_path / "x.tar", samples()).read_bytes()
    whole, _ = scan(data)
    found, end = scan(data[: whole[3].offset])
    assert found == whole[:3]
    assert "without an end-of-archive mark" in end.damage[0]


def test_a_file_of_no_bytes_is_empty() -> None:
    found, end = scan(b"")
    assert (found, end.damage) == ([], ["is empty: it has 0 bytes"])


def test_a_damaged_header_ends_what_is_read(tmp_path: Path) -> None:
    data = bytearray(by_tarfile(tmp_path / "x.tar", samples()).read_bytes())
    whole, _ = scan(bytes(data))
    data[whole[4].offset + 20] ^= 1
    found, end = scan(bytes(data))
    assert found == whole[:4]
    assert str(whole[4].offset + 512) in end.damage[0]


def test_joined_tars_are_told(tmp_path: Path) -> None:
    one = by_tarfile(tmp_path / "x.tar", samples()).read_bytes()
    two = by_tarfile(tmp_path / "y.tar", samples("more")).read_bytes()
    found, end = scan(one + two)
    assert len(found) == 7
    assert "behind its end-of-archive mark" in end.damage[0]


def test_a_packed_tar_is_refused_in_words(tmp_path: Path) -> None:
    import gzip

    found, end = scan(gzip.compress(by_tarfile(tmp_path / "x.tar", samples()).read_bytes()))
    assert found == []
    assert "gzip" in end.damage[0]


def test_a_large_sample_is_passed_over_in_little_memory(tmp_path: Path) -> None:
    large = ("large", {"txt": b"x", "mp4": bytes(300_000)})
    listed = [samples()[0], large, *samples()[1:3], ("last", {"mp4": bytes(40_000)})]
    data = by_tarfile(tmp_path / "x.tar", listed, tarfile.PAX_FORMAT).read_bytes()
    found, end = scan(data, max_sample_bytes=39_000)
    assert [sample.key for sample in found if sample.problem] == ["large", "last"]
    assert [sample.region for sample in found if not sample.problem] == [
        data[sample.offset : sample.offset + sample.size] for sample in found if not sample.problem
    ]
    assert end.damage == []


def test_names_that_cannot_be_kept_are_a_problem(tmp_path: Path) -> None:
    listed = [("ok", {"txt": b"1"}), ("bad\udcff", {"txt": b"2"}), ("twice", {"TXT": b"3", "txt": b"4"})]
    found, _ = scan(by_tarfile(tmp_path / "x.tar", listed, tarfile.GNU_FORMAT).read_bytes())
    assert [bool(sample.problem) for sample in found] == [False, True, True]
    assert found[1].key.encode() == b"bad?"


@pytest.mark.parametrize("kind", FORMATS)
def test_flipped_bytes_never_raise_anything_but_words(tmp_path: Path, kind: int) -> None:
    data = by_tarfile(tmp_path / "x.tar", samples(LONG, 2), kind).read_bytes()
    whole, _ = scan(data)
    rng = np.random.default_rng(1)
    headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    for place in (int(rng.choice(headers)) + int(rng.integers(1024)) for _ in range(600)):
        damaged = bytearray(data)
        damaged[place] = int(rng.integers(256))
        scan(bytes(damaged))
        for sample in whole:
            try:
                read_sample(bytes(damaged[sample.offset : sample.offset + sample.size]))
            except RunError:
                continue


def test_a_region_of_two_samples_is_refused(tmp_path: Path) -> None:
    data = by_tarfile(tmp_path / "x.tar", samples()).read_bytes()
    found, _ = scan(data)
    with pytest.raises(RunError, match="0001"):
        read_sample(data[: found[1].offset + found[1].size])


def test_a_sample_is_parsed_in_a_fraction_of_the_time_of_tarfile(tmp_path: Path) -> None:
    def by_library(data: memoryview | bytes) -> list[bytes]:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return [archive.extractfile(member).read() for member in archive]

    def least(read: Callable[[memoryview | bytes], object]) -> int:
        times = []
        for _ in range(300):
            began = time.process_time_ns()
            read(region)
            times.append(time.process_time_ns() - began)
        return min(times)

    path = by_tarfile(tmp_path / "x.tar", samples(), tarfile.USTAR_FORMAT)
    found, _ = scan(path.read_bytes())
    region = found[0].region
    assert region is not None
    assert least(read_sample) < least(by_library) / 4  # a fourteenth
