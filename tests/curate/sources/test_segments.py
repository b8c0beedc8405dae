"""Lists of segments, as public sets are published: every row gives its spans, captions and columns, or says why not."""

import datetime
import io
import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelweave.curate.sources.entries import InvalidEntry, ListEntry
from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.curate.sources.lists import read_list
from reelweave.curate.sources.literals import literal_of
from reelweave.curate.sources.times import seconds_of
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig
from tests.httpserver import web_server

CONFIG = StorageConfig()
PANDA = """videoID,url,timestamp,caption,matching_score
a,a.mp4,"[['0:00:00.500', '0:00:03.000'], ['0:00:05.000', '0:00:08.000']]",\
"['it\\'s a boat', ""a kite, 'high'""]","[0.42, 0.38]"
"""


def entries(name: str, text: str | bytes) -> list[ListEntry | InvalidEntry]:
    return list(read_list(io.BytesIO(text if isinstance(text, bytes) else text.encode()), name))


def entry(name: str, text: str | bytes) -> ListEntry:
    (found,) = entries(name, text)
    assert isinstance(found, ListEntry), found
    return found


def said(found: ListEntry) -> list[tuple[float, float, str | None]]:
    return [(one.start, one.end, one.caption) for one in found.segments]


def listed(folder: Path, text: str, name: str = "list.csv") -> list[SourceRef]:
    for film in ("a.mp4", "b.mp4"):
        (folder / film).write_bytes(b"film")
    (folder / name).write_text(text)
    return list_sources([str(folder / name)], CONFIG)


def test_panda_70m_as_csv() -> None:
    found = entry("panda.csv", PANDA)
    assert (found.path, found.caption) == ("a.mp4", None)
    assert said(found) == [(0.5, 3.0, "it's a boat"), (5.0, 8.0, "a kite, 'high'")]
    assert [one.attributes for one in found.segments] == [
        {"videoID": "a", "matching_score": "0.42"},
        {"videoID": "a", "matching_score": "0.38"},
    ]


def test_internvid_names_films_by_their_id(tmp_path: Path) -> None:
    text = "YoutubeID,Start_timestamp,End_timestamp,Caption,Aesthetic_Score,UMT_Score\n"
    text += "a,00:00:05.000,00:00:08.500,a kite,5.1,0.4\na,00:00:01.000,00:00:03.000,a boat,4.5,0.3\n"
    (found,) = listed(tmp_path, text)
    assert (found.uri, found.fault, found.caption) == (f"{tmp_path}/a.mp4", None, None)
    assert [(one.start, one.end, one.caption) for one in found.segments] == [
        (1, 3, "a boat"),
        (5, 8.5, "a kite"),
    ]
    assert found.segments[0].attributes == {"YoutubeID": "a", "Aesthetic_Score": "4.5", "UMT_Score": "0.3"}
    (gone,) = listed(tmp_path, text.replace("\na,", "\ngone,"))
    assert gone.uri == f"{tmp_path}/list.csv#id=gone"
    assert "no file gone with .mp4" in str(gone.fault)
    assert len(gone.segments) == 2


def test_koala_36m_has_the_id_of_its_clip_beside_the_page_of_its_film(tmp_path: Path) -> None:
    (tmp_path / "QMi8x8o55Ns.mkv").write_bytes(b"film")
    (tmp_path / "QMi8x8o55Ns_7.mp4").write_bytes(b"clip")
    text = "videoID,url,timestamp,caption\nQMi8x8o55Ns_7,https://www.youtube.com/watch?v=QMi8x8o55Ns,"
    (found,) = listed(tmp_path, text + "\"['0:00:02.100', '0:01:05']\",a boat\n")
    assert found.uri == f"{tmp_path}/QMi8x8o55Ns.mkv"
    assert [(one.start, one.end, one.caption) for one in found.segments] == [(2.1, 65, "a boat")]


def test_hd_vila_lists_objects() -> None:
    clips = [
        {"clip_id": "a.1.mp4", "span": ["00:00:17.759", "00:00:23.279"]},
        {"clip_id": "a.2.mp4", "span": ["00:04:52.140", "00:05:03.350"], "caption": "a kite"},
    ]
    found = entry("hdvila.jsonl", json.dumps({"video": "a.mp4", "clip": clips}))
    assert said(found) == [(17.759, 23.279, None), (292.14, 303.35, "a kite")]
    assert [one.attributes for one in found.segments] == [{"clip_id": "a.1.mp4"}, {"clip_id": "a.2.mp4"}]


def test_miradata_counts_frames() -> None:
    text = "index,video,start_frame,end_frame,short_caption,dense_caption,fps,start_timestep,end_timestep,,\n"
    found = entry("mira.csv", text + "1,a.mp4,72,168,short,long and dense,23.976,0:00:03,0:00:07,,\n")
    (segment,) = found.segments
    assert (segment.start, segment.end, segment.unit, segment.fps) == (72, 168, "frame", 23.976)
    assert segment.caption == "long and dense"
    assert segment.attributes["short_caption"] == "short"


@pytest.mark.parametrize(
    "row",
    [
        {"timestamps": [[0.5, 3], [5, 8.25]], "sentences": ["a boat", "a kite"]},  # ActivityNet Captions
        {"captions_starts": [0.5, 5], "captions_ends": [3, 8.25], "en_captions": ["a boat", "a kite"]},
        {"start": [0.5, 5], "end": [3, 8.25], "text": ["a boat", "a kite"]},  # HowTo100M
        {
            "clips": [["00:00:00,500", "0:03"], ["5", "8.25"]],
            "caption": ["a boat", "a kite"],
        },  # video2dataset
        {"span": ["0:00.5 --> 0:03", "0:05-0:08.25"], "caption": ["a boat", "a kite"]},
        {"start": [0.5, 5], "duration": [2.5, 3.25], "caption": ["a boat", "a kite"]},  # subtitles of YouTube
        {"start_ms": ["500", 5000], "duration_ms": [2500, 3250], "caption": ["a boat", "a kite"]},
        {
            "segments": [
                {"start_time": "0:00.5", "clip_duration": 2.5, "duration": 60, "caption": "a boat"},
                {"start_time": "0:05", "clip_duration": "3.25", "duration": 60, "caption": "a kite"},
            ]
        },
        {"start_ms": ["500", 5000], "end_ms": [3000, 8250.0], "caption": ["a boat", "a kite"]},
        {
            "annotations": [
                {"segment": [0.5, 3], "sentence": "a boat"},
                {"segment": [5, 8.25], "caption": ["a kite"]},
            ]
        },
        {
            "segments": [
                {"start": 0.5, "end": 3, "caption": "a boat"},
                {"start": 5, "end": 8.25, "text": "a kite"},
            ]
        },
    ],
    ids=lambda row: ",".join(row),
)
@pytest.mark.parametrize("form", ["jsonl", "json in csv", "Python in csv", "parquet"])
def test_lists_per_film(row: dict[str, list[object]], form: str) -> None:
    if form == "jsonl":
        found = entry("list.jsonl", json.dumps({"path": "a.mp4", **row}))
    elif form == "parquet":
        try:
            table = pa.Table.from_pylist([{"path": "a.mp4", **row}])
        except pa.ArrowException:
            pytest.skip("parquet has one type for all values of a column")
        sink = io.BytesIO()
        pq.write_table(table, sink)
        found = entry("list.parquet", sink.getvalue())
    else:
        write = json.dumps if form == "json in csv" else repr
        cells = ['"' + write(value).replace('"', '""') + '"' for value in row.values()]
        found = entry("list.csv", f"path,{','.join(row)}\na.mp4,{','.join(cells)}\n")
    assert said(found) == [(0.5, 3, "a boat"), (5, 8.25, "a kite")]


def test_a_parquet_list_of_segments_keeps_scores_and_leaves_out_vectors() -> None:
    table = pa.table(
        {
            "path": ["a.mp4", "b.mp4"],
            "timestamp": [[["0:01", "0:03"], ["0:05", "0:08"]], [["0:00", "0:02"]]],
            "caption": [["a boat", "a kite"], ["a lake"]],
            "matching_score": [[0.5, 0.25], [0.75]],
            "embedding": [[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]],
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    one, other = entries("list.parquet", sink.getvalue())
    assert isinstance(one, ListEntry)
    assert [segment.attributes for segment in one.segments] == [
        {"matching_score": "0.5"},
        {"matching_score": "0.25"},
    ]
    assert isinstance(other, ListEntry)
    assert [segment.attributes for segment in other.segments] == [{"matching_score": "0.75"}]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("12.5", 12.5),
        (".5 s", 0.5),
        ("1e2", 100),
        ("75:30", 4530),
        ("1:02", 62),
        ("01:02:03.004", 3723.004),
        ("01:02:03,004", 3723.004),
        (3, 3),
        (datetime.time(1, 2, 3, 500_000), 3723.5),
        (datetime.timedelta(seconds=2.25), 2.25),
    ],
)
def test_times(text: object, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    ("columns", "cells", "words"),
    [
        ("start,end", "soon,9", r"column start = 'soon' is no time"),
        (
            "start,end",
            "00:00:05:12,9",
            r"column start = '00:00:05:12' is a time code with a number of frames",
        ),
        ("start,end", "0:61,9", r"column start = '0:61' has 60 or more"),
        ("start,end", "-1,9", r"column start = '-1' is no time"),
        ("start,end", "nan,9", r"column start = 'nan' is no time"),
        ("start,end", '"1,5",9', r"column start = '1,5' is no time"),
        ("start,end", "9,3", r"columns start = '9' and end = '3': the end is not after the start"),
        ("start,caption", "3,a boat", r"column start = '3' without its other end"),
        ("start,end", "3,", r"column start = '3' without its other end"),
        ("start,video_duration", "3,60", r"column start = '3' without its other end; .* start and duration"),
        ("start_ms,duration", "3000,2", r"column start_ms = '3000' without its other end"),
        ("end,duration", "9,3", r"column end = '9' without its other end"),
        ("start,duration", "3,0", r"column duration = '0' is no duration"),
        ("start,duration", "3,PT1M", r"column duration = 'PT1M' is no time"),
        ("start,duration", '"[0, 3]",60', r"a list in one of the columns start and duration only; give each"),
        ("start_frame,end_frame", "3.5,9", r"column start_frame = '3.5' is no number of a frame"),
        ("start_idx,end_idx", "3,9", r"column start_idx = '3' looks like a span"),
        ("timestamp", "12", r"column timestamp = '12' is no span"),
        ("timestamp", '"[[0, 3], [4]]"', r"column timestamp holds \[4\], which is no pair"),
        ("timestamp", '"[[0 3] [4 6]]"', r"lacks a comma between two values"),
        ("timestamp", '"[]"', r"lists no segment in the column timestamp"),
        ("timestamp", '"[[0, 3], [4, f()]]"', r"is no list in JSON or Python"),
        (
            "timestamp,caption",
            '"[[0, 3], [4, 6]]","[\'a\']"',
            r"has 2 spans and 1 captions in the column caption",
        ),
        ("timestamp,caption", '"[[0, 3], [4, 6]]",a boat', r"one caption for 2 segments"),
        ("timestamp,caption", "\"[[0, 3], [4, 6]]\",\"['a' 'b']\"", r"one caption for 2 segments"),
        ("start,end", '"[0, 1]","[1]"', r"has 2 values in the column start and 1 in end"),
        ("start,end", '"[0, 1]",2', r"a list in one of the columns start and end only"),
    ],
)
def test_what_cannot_be_read_is_refused_naming_file_row_column_and_value(
    tmp_path: Path, columns: str, cells: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        listed(tmp_path, f"path,{columns}\na.mp4,{cells}\n")
    assert "list.csv, entry 1" in str(caught.value)
    found = {
        source.uri: source
        for source in listed(tmp_path, f"path,{columns}\na.mp4,{cells}\nb.mp4,{',' * columns.count(',')}\n")
    }
    assert found.keys() == {f"{tmp_path}/list.csv#entry=1", f"{tmp_path}/b.mp4"}  # a row of the accounting


@pytest.mark.parametrize(
    ("row", "span", "attributes"),
    [
        ({"start": 3, "duration": 2.5}, (3, 5.5), {}),
        ({"start_time": "0:03", "duration": "0:02.5"}, (3, 5.5), {}),
        ({"start_seconds": 0.1, "duration_in_seconds": 0.2}, (0.1, 0.3), {}),
        (
            {"start_frame": 30, "num_frames": 49, "video_num_frames": 900},
            (30, 79),
            {"video_num_frames": "900"},
        ),
        # Beside ends, pairs or the length of a clip, "duration" is the film's.
        ({"start": 3, "end": 5.5, "duration": 60.5}, (3, 5.5), {"duration": "60.5"}),
        ({"timestamp": [3, 5.5], "duration": 60.5}, (3, 5.5), {"duration": "60.5"}),
        ({"timestamp": [3, 5.5], "start": 1, "duration": 60.5}, (3, 5.5), {"start": "1", "duration": "60.5"}),
        ({"start": 3, "duration": 60.5, "clip_duration": 2.5}, (3, 5.5), {"duration": "60.5"}),
        ({"start": 3, "duration": 2.5, "video_duration": 60.5}, (3, 5.5), {"video_duration": "60.5"}),
    ],
)
def test_a_start_and_a_duration(
    row: dict[str, object], span: tuple[float, float], attributes: dict[str, str]
) -> None:
    found = entry("list.jsonl", json.dumps({"path": "a.mp4", **row}))
    assert said(found) == [(*span, None)]
    assert found.segments[0].attributes == attributes


def test_the_duration_of_a_whole_film_is_no_span() -> None:
    found = entry("list.jsonl", json.dumps({"path": "a.mp4", "duration": 60.5, "caption": "a boat"}))
    assert (found.segments, found.caption, found.attributes) == ((), "a boat", {"duration": "60.5"})


def test_columns_that_only_sound_like_spans_stay_attributes() -> None:
    row = {
        "path": "a.mp4",
        "caption": "a boat",
        "timestamp": "2023-05-01T10:00:00Z",
        "clip": "clip_0012",
        "scene": ["beach", "sea"],
        "frames": 300,
        "segment": 3,
    }
    found = entry("list.jsonl", json.dumps(row))
    assert (found.caption, found.segments) == ("a boat", ())
    assert found.attributes.keys() == {"timestamp", "clip", "scene", "frames", "segment"}
    spanned = entry("list.jsonl", json.dumps({**row, "start": 1, "end": 2}))
    assert said(spanned) == [(1, 2, "a boat")]
    assert spanned.segments[0].attributes["timestamp"] == "2023-05-01T10:00:00Z"


def test_a_caption_of_a_whole_film_may_be_a_list_as_text_or_stand_in_brackets() -> None:
    one, other = entries(
        "list.csv", """path,caption\na.mp4,"['a boat', 'b']"\nb.mp4,[music] a kite [laughs]\n"""
    )
    assert isinstance(one, ListEntry)
    assert isinstance(other, ListEntry)
    assert (one.caption, other.caption) == ("a boat", "[music] a kite [laughs]")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            "a.mp4,,,a boat,CC0\na.mp4,,,a kite,CC0\n",
            r"entry 2, column caption: 'a kite' contradicts 'a boat'",
        ),
        ("a.mp4,,,a boat,CC0\na.mp4,,,a boat,MIT\n", r"entry 2, column licence: 'MIT' contradicts 'CC0'"),
        (
            "a.mp4,,,a boat,\na.mp4,1,3,a kite,\n",
            r"entry 2, column caption: one entry captions .*a.mp4 as a whole",
        ),
        (
            "a.mp4,1,3,a kite,\na.mp4,,,a boat,\n",
            r"entry 2, column caption: one entry captions .*a.mp4 as a whole",
        ),
    ],
)
def test_entries_that_contradict_each_other_are_refused(tmp_path: Path, rows: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        listed(tmp_path, f"path,start,end,caption,licence\n{rows}")
    assert "list.csv" in str(caught.value)


def test_inputs_that_name_one_film_say_different_things_of_it(tmp_path: Path) -> None:
    """A folder before a list once hid all that the list says."""
    listed(tmp_path, "path,caption,licence\na.mp4,a boat,CC0\n")
    (tmp_path / "years.csv").write_text("path,year\na.mp4,2024\na.mp4,2024\n")
    (tmp_path / "spans.csv").write_text(
        "path,start,end,caption\nb.mp4,4,6,a kite\nb.mp4,1,3,\nb.mp4,4,6,a kite\n"
    )
    inputs = [str(tmp_path), *(str(tmp_path / name) for name in ("list.csv", "years.csv", "spans.csv"))]
    for order in (inputs, inputs[::-1]):
        one, other = list_sources(order, CONFIG)
        assert (one.caption, one.attributes) == ("a boat", {"licence": "CC0", "year": "2024"})
        assert [(each.start, each.caption) for each in other.segments] == [(1, None), (4, "a kite")]


def test_sources_with_segments_are_stored_and_read_back(tmp_path: Path) -> None:
    (found,) = listed(tmp_path, PANDA)
    assert SourceRef.from_stored(json.loads(json.dumps(found.to_stored()))) == found
    whole = SourceRef("a.mp4", 1, "v", "a boat")
    assert "segments" not in whole.to_stored()
    assert SourceRef.from_stored(whole.to_stored()) == whole


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 5_000 + "]" * 5_000,
        "(" * 20 + ")" * 20,
        "[1" + "-1" * 60_000 + "]",
        "[" + "-" * 100_000 + "1]",
        "[9**9**9]",
        "[__import__('os').getcwd()]",
        "['a' 'b']",
        "[1][0]",
        "[" + "1," * 200_000 + "]",
        "{'a': [}",
        "[f'{1}']",
    ],
)
def test_hostile_literals_are_refused_at_once(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"."):
        literal_of(text)
    assert time.monotonic() - began < 2


def test_literals_of_python_are_read() -> None:
    assert literal_of("[('a', 1.5), [None, True], {'b': -2e3}]") == [("a", 1.5), [None, True], {"b": -2e3}]
    assert literal_of("['it\\'s', \"\\\\d\", 'é']") == ["it's", "\\d", "é"]


def test_a_film_on_the_web_is_asked_for_once_whatever_the_number_of_its_segments() -> None:
    with web_server() as web:
        web.files |= {"/raw/a.mp4": b"film", "/raw/b.webm": b"film"}
        rows = "".join(
            f"{name},{place},{place + 1},caption {place}\n" for place in range(30) for name in "ab"
        )
        web.files["/raw/list.csv"] = f"video_id,start,end,caption\n{rows}".encode()
        found = list_sources([f"{web.url}/raw/list.csv"], StorageConfig(allow_private=True))
        assert [(one.uri, len(one.segments), one.fault) for one in found] == [
            (f"{web.url}/raw/a.mp4", 30, None),
            (f"{web.url}/raw/b.webm", 30, None),
        ]
        asked = [request for request in web.requests if " /raw/a.mp4" in request.line]
        assert 1 <= len(asked) <= 2
