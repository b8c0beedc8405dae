"""Files that grow are read once, those written anew again, and what is no record is passed over."""

import json
import os
from pathlib import Path

from reelweave.pipelines.metrics.followed import FollowedRecords
from reelweave.pipelines.report.run.lines import MAX_LINE


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_each_whole_line_is_read_once(tmp_path):
    path = tmp_path / "lines"
    followed = FollowedRecords(path)
    assert list(followed.new()) == []
    append(path, '{"step": 1}\n{"step": 2}\n{"st')
    assert list(followed.new()) == [{"step": 1}, {"step": 2}]
    assert list(followed.new()) == []
    append(path, 'ep": 3}\n')
    assert list(followed.new()) == [{"step": 3}]
    assert followed.passes == 1


def test_a_file_that_is_written_anew_is_read_anew(tmp_path):
    path, aside = tmp_path / "lines", tmp_path / "aside"
    append(path, '{"step": 1}\n{"step": 2}\n')
    followed = FollowedRecords(path)
    assert len(list(followed.new())) == 2
    aside.write_text('{"step": 1}\n{"step": 9, "more": "than before"}\n')
    aside.replace(path)
    assert [record["step"] for record in followed.new()] == [1, 9]
    path.write_text("")
    append(path, '{"step": 7}\n')
    assert [record["step"] for record in followed.new()] == [7]
    assert followed.passes == 3


def test_what_is_no_record_is_passed_over_in_bounded_memory(tmp_path):
    path = tmp_path / "lines"
    append(path, "[1]\nnot json\n" + "x" * (3 * MAX_LINE + 5) + '\n{"step": 1}\n' + "[" * 100_000 + "\n")
    append(path, json.dumps({"text": "y" * (MAX_LINE + 9)}) + '\n{"step": 2}\n')
    followed = FollowedRecords(path)
    assert list(followed.new()) == [{"step": 1}, {"step": 2}]
    assert list(followed.new()) == []


def test_a_pipe_without_a_writer_holds_nobody_up(tmp_path):
    os.mkfifo(tmp_path / "lines")
    assert list(FollowedRecords(tmp_path / "lines").new()) == []
