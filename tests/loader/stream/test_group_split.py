"""Splits by groups: train and val are complements, no group stands on both sides, and data that comes moves none."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from reelweave.loader.blend import open_blend
from reelweave.loader.blend.selection.choose import in_val
from reelweave.loader.blend.selection.config import GroupSplit
from reelweave.loader.dataset import Sample, open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.dataset.test_growth import add
from tests.loader.stream.test_selection import flat, keys, made, settings
from tests.loader.stream.test_stream_resume import run_steps
from tests.loader.stream_clips import write


@pytest.fixture
def folder(samples: list[Sample], tmp_path: Path) -> Path:
    return write(tmp_path / "films", made(samples, range(60)))


def part(folder: Path, name: str | None, **values: object) -> Counter[str]:
    split = GroupSplit(**{"share": 0.3, **values}, part=name)
    return keys(VideoStream(open_dataset(folder), settings(split=split, epochs=1)))


def sides(folder: Path, drawn: Counter[str]) -> set[str]:
    return {sample.row["source"] for sample in open_dataset(folder) if sample.row["key"] in drawn}


def test_parts_are_complements_and_share_no_source(folder: Path) -> None:
    train, val = part(folder, "train"), part(folder, "val")
    assert part(folder, None) == train
    assert train + val == Counter(open_dataset(folder).row_numbers.keys())
    assert not sides(folder, train) & sides(folder, val)
    assert len(sides(folder, val)) == sum(in_val(GroupSplit(share=0.3), f"film{n:02}") for n in range(15))
    assert part(folder, "val", seed=1) != val
    # A larger share takes more groups, and gives none back.
    assert sides(folder, val) < sides(folder, part(folder, "val", share=0.7))


def test_data_that_comes_moves_no_group_also_within_an_epoch(folder: Path, samples: list[Sample]) -> None:
    before = {name: part(folder, name) for name in ("train", "val")}
    changes = settings(split=GroupSplit(share=0.3))
    first, state = run_steps(open_dataset(folder), changes, 1, None, 9)
    add(folder, made(samples, range(60, 120)))
    after = {name: part(folder, name) for name in ("train", "val")}
    for name, drawn in before.items():
        assert drawn - after[name] == Counter()
    assert not sides(folder, after["train"]) & sides(folder, after["val"])
    rest, _ = run_steps(open_dataset(folder), changes, 2, state, 10**4)
    found = flat(first + rest)
    assert keys(found, 0) == keys(found, 1) == after["train"]


def test_samples_without_a_group_are_in_train_and_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    val = part(folder, "val", by="licence", share=0.999)
    assert len(val) == 30
    assert "30 have no value that names their group: they are in train" in caplog.text
    train = part(folder, "train", by="licence", share=0.999)
    caplog.clear()
    both = {"split": GroupSplit(by="licence", share=1e-9), "quota": {"by": "licence", "samples": 50}}
    keys(VideoStream(open_dataset(folder), settings(**both, epochs=1)))
    assert "30 have no value that names their group" in caplog.text
    assert train == Counter(open_dataset(folder).row_numbers.keys()) - val
    by_score = [part(folder, name, by="aesthetic", share=0.5) for name in ("train", "val")]
    assert by_score[0] + by_score[1] == train + val
    scores = [
        {
            sample.row["scores"].get("aesthetic")
            for sample in open_dataset(folder)
            if sample.row["key"] in drawn
        }
        for drawn in by_score
    ]
    assert not scores[0] & scores[1]
    assert None in scores[0]


def test_groups_of_one_sample_are_said(
    samples: list[Sample], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lone = made(samples, range(8))
    for sample in lone:
        sample.row["source"] = f"0.tar/{sample.row['key']}"
    part(write(tmp_path / "lone", lone), "train", share=0.5)
    assert "each group has one sample: a split by source is one by sample" in caplog.text


def test_a_blend_file_splits_by_its_own_splits(folder: Path) -> None:
    file = folder.parent / "mix.yaml"
    node = {"path": str(folder), "split": {"by": "source", "share": 0.3}}
    file.write_text(yaml.safe_dump({"splits": {"train": node, "val": node, "test": node}}))
    for name in ("train", "val"):
        drawn = keys(VideoStream(open_blend(file, name), settings(epochs=1)))
        assert drawn == part(folder, name)
    with pytest.raises(UsageError, match="has the parts train and val: set part, since test is none"):
        open_blend(file, "test")
    with pytest.raises(UsageError, match="a split or a quota beside another one"):
        VideoStream(open_blend(file), settings(split=GroupSplit()))
