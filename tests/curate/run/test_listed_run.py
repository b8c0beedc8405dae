"""Films curated by lists of segments: each clip has the frames and the caption of its own segment."""

import csv
import json
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, NamedTuple

import av
import numpy as np
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import Outcome, curate
from reelweave.curate.shots.listed import listed_spans
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.source_pass.scan import scan
from reelweave.curate.sources.segments import Segment, sort_segments
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import Removal, open_dataset, verify
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from tests.curate.run.test_run import SMALL_WORDS, config, published, tree
from tests.media import CORPUS, NO_CORPUS, read_number, read_numbers, write_video
from tests.player import PROGRAM, ffmpeg
from tests.thorough import beyond, but, nightly, thorough
from tests.warm import Warm

SIZE = 160, 128
BOAT, KITE, LAKE = "A boat, slowly.", "A kite above it.", "The lake at night."
FAR = "Far away."
LONG = ("popeye_roc.mkv", "bbb_opening.mp4")
FILMS = (*LONG, "bunny_square.webm", "highway_bridge.avi")
DEDUP_OFF = {"dedup": {"perceptual": {"enabled": False}}}
LISTED = config(**DEDUP_OFF)


def write_list(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two films of which a list names segments, one row for each, and one of which it names none."""
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "a.mp4", (60, 60, 60), rate=25, audio=True)
    times_s = np.cumsum([0.04] * 40 + [0.02] * 40 + [0.08] * 20)
    write_video(folder / "b.mkv", (60, 40), times_s=times_s, first_scene=4)
    write_video(folder / "c.mp4", (45,), first_scene=8)
    rows = [
        {"path": "a.mp4", "start": "00:00:04.000", "end": "5.6", "caption": KITE, "score": 2},
        {"path": "a.mp4", "start": "0.5", "end": "0:02.52", "caption": BOAT, "score": 1},
        {"path": "a.mp4", "start": "2.6", "end": "3.1", "caption": "Too short."},
        {"path": "a.mp4", "start": "6", "end": "9", "caption": "Beyond the end."},
        {"path": "b.mkv", "start": "1", "end": "3", "caption": LAKE},
        {"path": "c.mp4", "caption": "A whole film."},
    ]
    write_list(folder / "list.csv", rows)
    return folder


def make(inputs: Path, out: Path, settings: CurateConfig = LISTED, **options: Any) -> Outcome:
    return curate([str(inputs)], str(out), settings, **options)


@pytest.fixture(scope="module")
def made(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "dataset"
    make(raw / "list.csv", out)
    return out


def shown_by_ffmpeg(path: Path, chain: str = "null", size: tuple[int, int] = SIZE) -> np.ndarray:
    """Pictures that ffmpeg's own program shows, [frames, height, width, 3]."""
    words = [
        PROGRAM,
        "-v",
        "error",
        "-i",
        str(path),
        "-map",
        "0:v:0",
        "-vf",
        chain,
        "-fps_mode",
        "passthrough",
    ]
    words += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(words, check=True, capture_output=True, timeout=300).stdout
    return np.frombuffer(data, np.uint8).reshape(-1, size[1], size[0], 3)


class Clip(NamedTuple):
    """A clip of a dataset, and its row of the index."""

    row: dict[str, Any]
    data: bytes


def clips(out: Path) -> dict[str, Clip]:
    """The clips of a dataset by caption."""
    dataset = open_dataset(out)
    rows = dataset.index.to_pylist(maps_as_pydicts="strict")
    return {row["caption"]: Clip(row, dataset.read_member(place, "mp4")) for place, row in enumerate(rows)}


def accounts(out: Path, name: str) -> list[dict[str, Any]]:
    rows = open_dataset(out).accounting.to_pylist()
    return [row for row in rows if Path(row["source"]).name == name]


def assert_whole(rows: Sequence[dict[str, Any]], end_s: float) -> None:
    assert rows[0]["start_s"] == 0
    assert rows[-1]["end_s"] == pytest.approx(end_s, abs=1e-6)
    for one, other in pairwise(rows):
        assert one["end_s"] == other["start_s"]
    assert sum(row["end_s"] - row["start_s"] for row in rows) == pytest.approx(end_s)


def test_every_row_is_accounted_for_and_every_second(made: Path) -> None:
    rows = accounts(made, "a.mp4")
    assert_whole(rows, 7.2)
    assert [
        (round(row["start_s"], 6), round(row["end_s"], 6), row["state"], row["stage"]) for row in rows
    ] == [
        (0.0, 0.52, "filtered", "not listed"),
        (0.52, 2.52, "kept", "cut"),
        (2.52, 2.6, "filtered", "not listed"),
        (2.6, 3.12, "filtered", "spans"),
        (3.12, 4.0, "filtered", "not listed"),
        (4.0, 5.6, "kept", "cut"),
        (5.6, 6.0, "filtered", "not listed"),
        (6.0, 7.2, "filtered", "listed"),
    ]
    assert (
        rows[-1]["reason"]
        == "the listed span 6.000 to 9.000 s reaches beyond the film, which ends at 7.200 s"
    )
    assert [row["state"] for row in accounts(made, "c.mp4")] == ["kept"]
    assert verify(open_storage(made)).problems == []


def test_overlapping_segments_become_a_clip_each_and_seconds_are_counted_once(
    raw: Path, tmp_path: Path
) -> None:
    """As ActivityNet's dense captions do."""
    spans = {BOAT: [0.5, 2.52], KITE: [1.0, 3.0], LAKE: [0.2, 7.0], FAR: [3.52, 5.52]}
    rows = {"timestamps": list(spans.values()), "sentences": list(spans)}
    path = raw / "overlapping.json"
    path.write_text(json.dumps({"a.mp4": rows}))
    out, alone = tmp_path / "out", tmp_path / "alone"
    keep = {"spans": {"overlapping": "keep"}}
    make(path, out, config(**DEDUP_OFF, **keep))
    found = clips(out)
    assert {
        caption: [round(found[caption].row[name], 3) for name in ("start_s", "end_s")] for caption in found
    } == {
        BOAT: [0.52, 2.52],
        KITE: [1.0, 3.0],
        LAKE: [0.2, 7.0],
        FAR: [3.52, 5.52],
    }
    accounted = accounts(out, "a.mp4")
    assert_whole(accounted, 7.2)
    kept = [(row["start_s"], row["end_s"], row["reason"]) for row in accounted if row["state"] == "kept"]
    assert kept[0] == (0.2, 7.0, "")
    assert {one[:2] for one in kept[1:]} == {(7.2, 7.2)}
    assert all("overlaps another listed segment" in one[2] for one in kept[1:])
    assert verify(open_storage(out)).problems == []

    write_list(raw / "alone.csv", [{"path": "a.mp4", "start": 1, "end": 3, "caption": KITE}])
    make(raw / "alone.csv", alone)
    assert clips(alone)[KITE].data == found[KITE].data

    removal = Removal(key=found[KITE].row["key"], date="2026-11-28", reason="asked", samples=0)
    done = remove(open_storage(out), removal)
    # Clips that show the same seconds go at once, as the next run would leave them out.
    assert set(done.overlapping) == {found[caption].row["key"] for caption in (BOAT, LAKE)}
    assert done.samples == 3
    assert clips(out).keys() == {FAR}
    assert verify(open_storage(out)).problems == []
    make(path, out, config(**DEDUP_OFF, **keep, filters={"min_duration_s": 1.5}), update=True)
    assert clips(out).keys() == {FAR}
    down = "taken down on 2026-11-28: asked"
    reasons = {row["key"]: row["reason"] for row in accounts(out, "a.mp4") if row["key"]}
    assert {caption: reasons[found[caption].row["key"]] for caption in (KITE, BOAT, LAKE)} == {
        KITE: down,
        BOAT: f"{down} (of another clip, with which it shares seconds)",
        LAKE: f"{down} (of another clip, with which it shares seconds)",
    }


def test_each_clip_has_the_caption_and_the_columns_of_its_own_row(made: Path) -> None:
    found = clips(made)
    assert found.keys() == {BOAT, KITE, LAKE, "A whole film."}
    assert {clip.row["caption_source"] for clip in found.values()} == {"input"}
    assert (found[BOAT].row["attributes"], found[KITE].row["attributes"]) == ({"score": "1"}, {"score": "2"})
    assert found[LAKE].row["attributes"] == {}


@pytest.mark.parametrize(
    ("caption", "film", "start_s", "end_s"),
    [(BOAT, "a.mp4", 0.5, 2.52), (KITE, "a.mp4", 4, 5.6), (LAKE, "b.mkv", 1, 3)],
)
def test_the_frames_of_a_clip_are_those_of_its_span(
    raw: Path, made: Path, tmp_path: Path, caption: str, film: str, start_s: float, end_s: float
) -> None:
    """ffmpeg's filter trim keeps frames by the same rule."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(clips(made)[caption].data)
    of_clip = [read_number(picture) for picture in shown_by_ffmpeg(path)]
    of_span = [read_number(picture) for picture in shown_by_ffmpeg(raw / film, f"trim={start_s}:{end_s}")]
    if film.endswith("mp4"):
        assert of_clip == of_span
    else:  # of variable rate: frames that are shown for long are repeated
        assert list(dict.fromkeys(of_clip)) == of_span
        assert of_clip == sorted(of_clip)


@pytest.mark.parametrize("fps", beyond(1, [25.0, None, 50.0]))
def test_frame_numbers_count_the_frames_that_a_film_of_varying_rate_shows(
    raw: Path, tmp_path: Path, fps: float | None
) -> None:
    """Its mean is 25 frames per second, and its fastest part has 50."""
    spans = [(3, 38), (40, 79), (81, 99)]
    rows = [
        {
            "path": str(raw / "b.mkv"),
            "start_frame": first,
            "end_frame": last,
            "fps": fps,
            "caption": f"{first}",
        }
        for first, last in spans
    ]
    settings = config(**DEDUP_OFF, spans={"min_clip_s": 0.5}, filters={"min_duration_s": 0.5})
    make(write_list(tmp_path / "list.csv", rows), tmp_path / "made", settings)
    shown = {caption: read_numbers(clip.data) for caption, clip in clips(tmp_path / "made").items()}
    assert shown == {f"{first}": list(range(first, last)) for first, last in spans}


def test_the_same_call_again_changes_nothing_and_a_changed_span_cuts_its_film_alone(
    raw: Path, made: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "raw", tmp_path / "dataset"
    shutil.copytree(raw, folder)
    make(folder / "list.csv", out)
    assert make(folder / "list.csv", out).already_there
    text = (folder / "list.csv").read_text()
    (folder / "list.csv").write_text(text.replace("0:02.52", "0:02.12"))
    before = clips(out)
    with pytest.raises(UsageError, match="from other inputs"):
        make(folder / "list.csv", out)
    notes = make(folder / "list.csv", out, update=True).notes
    assert [note for note in notes if "1 film is listed with other segments than before" in note]
    after = clips(out)
    assert (before[BOAT].row["end_s"], after[BOAT].row["end_s"]) == (2.52, 2.12)
    assert before[KITE].data == after[KITE].data
    assert after.keys() == before.keys()
    assert_whole(accounts(out, "a.mp4"), 7.2)
    fresh = tmp_path / "fresh"
    make(folder / "list.csv", fresh)
    assert accounts(fresh, "a.mp4") == accounts(out, "a.mp4")


def test_a_changed_caption_decodes_nothing_and_concerns_its_segment_alone(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "raw", tmp_path / "dataset"
    shutil.copytree(raw, folder)
    make(folder / "list.csv", out)
    before = clips(out)
    text = (folder / "list.csv").read_text()
    (folder / "list.csv").write_text(text.replace(KITE, "Another kite."))

    def refuse(*_: object) -> None:
        raise AssertionError("a film is decoded again")

    monkeypatch.setattr(CutSource, "__call__", refuse)
    make(folder / "list.csv", out, update=True)
    after = clips(out)
    assert after.keys() == {BOAT, "Another kite.", LAKE, "A whole film."}
    assert after["Another kite."].data == before[KITE].data


def test_segments_are_split_at_shots_where_a_key_asks(raw: Path, tmp_path: Path) -> None:
    rows = [{"path": "a.mp4", "timestamp": "[[1, 4.4], [5, 7]]", "caption": json.dumps([BOAT, KITE])}]
    listed = write_list(raw / "shots.csv", rows)
    out = tmp_path / "dataset"
    make(listed, out, config(**DEDUP_OFF, spans={"listed": "shots", "min_clip_s": 0.5}))
    rows = [row for row in open_dataset(out).index.to_pylist() if row["source"].endswith("a.mp4")]
    assert sorted((row["start_s"], row["end_s"], row["caption"]) for row in rows) == [
        (1.0, 2.4, BOAT),
        (2.4, 4.4, BOAT),
        (5.0, 7.0, KITE),
    ]
    assert_whole(accounts(out, "a.mp4"), 7.2)


def test_listed_clips_pass_thresholds_and_deduplication(raw: Path, tmp_path: Path) -> None:
    shutil.copy(raw / "c.mp4", raw / "copy.mp4")
    rows = [
        {"path": "c.mp4", "start": 0, "end": 1.2, "caption": BOAT},
        {"path": "copy.mp4", "start": 0, "end": 1.2, "caption": KITE},
    ]
    listed = write_list(raw / "copies.csv", rows)
    make(listed, tmp_path / "copies", config())
    states = [row["state"] for row in open_dataset(tmp_path / "copies").accounting.to_pylist()]
    assert sorted(states) == ["duplicate", "filtered", "filtered", "kept"]
    strict = config(filters={"min_short_side_px": 4000})
    make(write_list(raw / "one.csv", rows[:1]), tmp_path / "strict", strict)
    rows = open_dataset(tmp_path / "strict").accounting.to_pylist()
    assert [(row["state"], row["stage"]) for row in rows] == [
        ("filtered", "filter.short_side_px"),
        ("filtered", "not listed"),
    ]


@pytest.mark.parametrize("unit", beyond(1, ["s", "frame"]))
def test_a_long_film_in_parts_gives_the_same_bytes(raw: Path, tmp_path: Path, unit: str) -> None:
    write_video(raw / "long.mp4", (70, 80, 75), audio=True, options={"g": "25"})
    spans = [[0.5, 2.2], [2.4, 5.2], [6.4, 8.8]]
    frames = [{"start_frame": int(25 * start), "end_frame": int(25 * end)} for start, end in spans]
    rows: list[dict[str, Any]] = (
        frames if unit == "frame" else [{"start": one, "end": end} for one, end in spans]
    )
    rows = [{"path": "long.mp4", **row, "caption": f"Segment {place}."} for place, row in enumerate(rows)]
    listed = write_list(raw / f"long-{unit}.csv", rows)
    make(listed, tmp_path / "whole")
    make(listed, tmp_path / "parts", config(**DEDUP_OFF, run={"part_s": 2.5}))
    assert tree(tmp_path / "parts") == tree(tmp_path / "whole")
    assert len(clips(tmp_path / "whole")) == 3
    assert_whole(accounts(tmp_path / "whole", "long.mp4"), 9.0)


def test_a_segment_that_is_taken_down_leaves_no_word_of_its_caption(
    raw: Path, made: Path, tmp_path: Path
) -> None:
    out = tmp_path / "dataset"
    shutil.copytree(made, out)
    key = clips(out)[KITE].row["key"]
    remove(open_storage(out), Removal(key=key, date="2026-11-28", reason="on request", samples=0))
    ledger = b"".join(path.read_bytes() for path in (out / ".ledger").rglob("*.json"))
    assert KITE.encode() not in ledger
    assert BOAT.encode() in ledger
    make(raw / "list.csv", out, update=True)
    assert clips(out).keys() == {BOAT, LAKE, "A whole film."}
    removed = [row for row in accounts(out, "a.mp4") if row["stage"] == "removal"]
    assert [(row["start_s"], round(row["end_s"], 6)) for row in removed] == [(4.0, 5.6)]


@thorough
def test_killed_at_work_it_ends_with_the_same_bytes(
    raw: Path, made: Path, tmp_path: Path, warm: Warm
) -> None:
    out, words = tmp_path / "dataset", [*SMALL_WORDS, "--set=dedup.perceptual.enabled=false"]
    command = ("curate", str(raw / "list.csv"), "--out", str(out), *words)
    assert warm.start(*command, killed_behind=r"\.ledger/clips/").ended()[0] == -9
    assert not (out / "manifest.json").exists()
    make(raw / "list.csv", out)
    assert published(out) == tree(made)


def test_the_example_of_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs/inputs.md").read_text()
    head = "    path,start,end,caption\n"
    rows, _, rest = page.partition(head)[2].partition("\n\n")
    command = rest.strip().splitlines()[0]
    (tmp_path / "segments.csv").write_text(dedent(head + rows) + "\n")
    write_video(tmp_path / "raw/one.mp4", (30, 25))
    write_video(tmp_path / "raw/two.mp4", (50,), first_scene=4)
    monkeypatch.chdir(tmp_path)
    assert main([*command.split()[1:], "--set", "run.runner=sequential", "--set", "run.isolate=false"]) == 0
    assert sorted(clips(tmp_path / "segments")) == [
        "A boat leaves the harbour.",
        "A kite above it.",
        "The lake at night.",
    ]


@nightly
@pytest.mark.usefixtures("ray_local")
def test_on_ray_the_dataset_is_the_same(raw: Path, made: Path, tmp_path: Path) -> None:
    settings = {**DEDUP_OFF, "run": {"runner": "ray", "isolate": True}}
    make(raw / "list.csv", tmp_path / "dataset", config(**settings))
    assert tree(tmp_path / "dataset") == tree(made)


@pytest.mark.skipif(not CORPUS.exists(), reason=NO_CORPUS)
@pytest.mark.parametrize("name", but([], FILMS, ("bbb_opening.mp4", "highway_bridge.avi")))
def test_real_footage_is_cut_exactly_to_the_frame(tmp_path: Path, name: str) -> None:
    """Each picture of a clip is nearer to its own of the source than to the one before or behind."""
    film = CORPUS / "originals" / name
    if name in LONG:
        # All of a film is scanned and decoded; its first seconds hold the promise.
        film = tmp_path / name
        ffmpeg(f"-i {CORPUS / 'originals' / name} -t 6 -c copy -y {film}".split())
    small = "scale=64:36:flags=area,format=rgb24"
    with av.open(str(film)) as container:
        times_s = np.array([frame.time for frame in container.decode(video=0)])
    if film.suffix == ".avi":  # it stores no times
        times_s = np.arange(len(times_s)) / 25
    start, end = 0.43, 2.71
    listed = write_list(
        tmp_path / "list.csv", [{"path": str(film), "start": start, "end": end, "caption": BOAT}]
    )
    out = tmp_path / "dataset"
    make(listed, out, config(**DEDUP_OFF, filters={"min_short_side_px": 0}))
    path = tmp_path / "clip.mp4"
    (clip,) = clips(out).values()
    path.write_bytes(clip.data)
    source = shown_by_ffmpeg(film, f"setpts=PTS-STARTPTS,{small}", (64, 36)).astype(int)
    found = shown_by_ffmpeg(path, small, (64, 36)).astype(int)
    first, last = np.searchsorted(times_s - times_s[0], [start - 5e-4, end - 5e-4])
    assert len(found) == last - first
    for shift in (-1, 1):
        own = np.abs(found - source[first:last]).mean()
        assert own < np.abs(found - source[first + shift : last + shift]).mean()


@pytest.mark.parametrize("unit", beyond(1, ["s", "frame"]))
def test_listed_segments_are_encoded_while_their_film_is_scanned(
    tmp_path: Path, unit: Literal["s", "frame"]
) -> None:
    """One decode is enough: nothing that comes later changes them."""
    film = write_video(tmp_path / "a.mp4", (60, 60, 60))
    rate = 25 if unit == "frame" else 1
    bounds = [(0, 1.2), (1.2, 3.0), (2.0, 4.0), (3.2, 3.4), (5.48, 7.2)]
    segments = sort_segments(
        Segment(round(start * rate, 3), round(end * rate, 3), unit) for start, end in bounds
    )
    stage = LISTED.source_stage()
    with film.open("rb") as file, scan(file, stage, segments) as seen:
        found = listed_spans(seen.timeline, seen.transitions, None, stage.spans, segments)
        wanted = [span for span in found if span.fault is None]
        assert seen.ahead is not None
        assert [(span.first, span.last, span in seen.ahead) for span in wanted] == [
            (0, 30, True),
            (30, 75, True),
            (137, 180, True),
        ]
