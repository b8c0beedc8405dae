"""The bench of labelled clips: what a label makes of a clip, what became of it, and that the labels are whole."""

import json
from pathlib import Path

import pytest

from tests.bench.usable_clips import (
    CROPPABLE,
    HALVES,
    REASONS,
    LabelledClip,
    Row,
    absent_films,
    fate_of,
    labelled_clips,
    read_films,
    table,
    wrong_ones,
)

ROOT = Path(__file__).parents[3]


def clip(labels: str = "good", start: float = 2.0, end: float = 6.0) -> LabelledClip:
    return LabelledClip("a.mp4", start, end, frozenset(labels.split()))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ("good", "good"),
        ("bars", "croppable"),
        ("bars blurred_pillars", "croppable"),
        ("bars title", "unusable"),
        ("mark", "unusable"),
        ("unsure", "unsure"),
    ],
)
def test_bars_alone_leave_a_clip_croppable(labels: str, kind: str) -> None:
    assert clip(labels).kind == kind


@pytest.mark.parametrize(
    ("rows", "fate"),
    [
        ([Row(2, 6, "kept", "cut")], "kept"),
        ([Row(0, 4, "kept", "cut"), Row(4, 9, "filtered", "spans")], "kept"),
        ([Row(0, 3, "kept", "cut"), Row(3, 9, "filtered", "filter.bars_share")], "filter.bars_share"),
        ([Row(2, 6, "duplicate", "dedup")], "dedup"),
        ([Row(7, 9, "kept", "cut")], "lost"),
        ([], "lost"),
    ],
)
def test_the_fate_of_a_clip_is_that_of_most_of_its_time(rows: list[Row], fate: str) -> None:
    assert fate_of(clip(), rows) == fate


@pytest.mark.parametrize(
    ("labels", "fate"), [("transition", "split"), ("bars transition", "split"), ("transition mark", "kept")]
)
def test_a_transition_is_gone_where_shots_end_within_the_clip(labels: str, fate: str) -> None:
    assert fate_of(clip(labels), [Row(2, 3, "kept", "cut"), Row(3, 6, "kept", "cut")]) == fate
    assert fate_of(clip(labels), [Row(2.1, 6, "kept", "cut")]) == "kept"
    assert fate_of(clip(labels), [Row(2, 3, "kept", "cut"), Row(3, 6, "filtered", "spans")]) == "spans"


def test_wrong_are_good_clips_that_went_and_unusable_ones_that_stayed() -> None:
    clips = [clip(), clip("bars", 7, 9), clip("title", 10, 12), clip("mark", 13, 15), clip("unsure", 20, 22)]
    fates = dict(
        zip((each.name for each in clips), ["filter.text_share", "kept", "kept", "x", "kept"], strict=True)
    )
    assert list(wrong_ones(clips, fates)) == [
        "good, taken by filter.text_share: a.mp4@2.00",
        "kept, title: a.mp4@10.00",
    ]
    lines = list(table(clips, fates))
    assert "| **good** | 1 | 0 (0%) | text_share 1 |" in lines
    assert "| **unusable** | 2 | 1 (50%) | x 1 |" in lines


@pytest.mark.parametrize("labels", ["nonsense", "good title", ""])
def test_a_label_that_the_page_does_not_know_is_refused(labels: str) -> None:
    films = {"a.mp4": {"half": "open", "clips": [[0.0, 2.0, labels]]}}
    with pytest.raises(ValueError, match=r"a\.mp4@0\.00"):
        labelled_clips(films, "open")


def test_a_film_that_is_missing_or_another_one_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "b.mp4").write_bytes(b"other")
    place = {"path": "v/x.mp4", "repository": "o/r", "commit": "c0ffee", "sha256": "00"}
    absent = absent_films({"a.mp4": place, "b.mp4": place}, tmp_path)
    assert absent == {
        "a.mp4": "is missing: v/x.mp4 of o/r at c0ffee",
        "b.mp4": "holds other bytes: v/x.mp4 of o/r at c0ffee",
    }


def test_the_labels_keep_the_rule_of_their_page() -> None:
    films = read_films()
    clips = labelled_clips(films, *HALVES)
    assert {film["half"] for film in films.values()} == set(HALVES)
    assert max(len(film["clips"]) for film in films.values()) <= 8
    assert all(0 <= each.start_s < each.end_s for each in clips)
    assert len({each.name for each in clips}) == len(clips)
    page = (ROOT / "docs/benchmarks/usable_clips.md").read_text()
    assert [label for label in sorted(REASONS | CROPPABLE) if f"| `{label}` |" not in page] == []


def test_labels_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps({"films": {"a.mp4": {"half": "open", "clips": []}}}))
    assert read_films(path) == {"a.mp4": {"half": "open", "clips": []}}
