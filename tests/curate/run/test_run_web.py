"""Curation of sources that a list names on the web."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import pytest
from pyarrow import parquet

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.storage import open_storage
from tests.httpserver import WebServer, web_server
from tests.media import write_video
from tests.thorough import thorough

CONFIG = CurateConfig.model_validate(
    {
        "spans": {"min_clip_s": 1.0},
        "run": {"runner": "sequential"},
        "storage": {"backoff_base_s": 0.001, "block_mib": 1, "allow_private": True},
    }
)
SECRET = "hidden-signature"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    write_video(tmp_path / "raw/two scenes.mp4", (40, 45))
    write_video(tmp_path / "raw/other.mp4", (50,), first_scene=5)
    with web_server() as server:
        for path in (tmp_path / "raw").iterdir():
            server.files[f"/{path.name}"] = path.read_bytes()
        yield server


def curated(web: WebServer, tmp_path: Path) -> Path:
    address = {
        name: f"{web.url}/{quote(name)}?Signature={SECRET}" for name in ("two scenes.mp4", "other.mp4")
    }
    (tmp_path / "list.csv").write_text(
        "url,caption,licence\n"
        f"{address['two scenes.mp4']},Two scenes.,CC0\n"
        f"{address['other.mp4']},,CC BY 4.0\n"
        f"{web.url}/gone.mp4,,\n"
    )
    curate([str(tmp_path / "list.csv")], str(tmp_path / "dataset"), CONFIG)
    return tmp_path / "dataset"


def text(path: Path) -> str:
    if path.suffix == ".parquet":
        return str(parquet.read_table(path).to_pylist())
    return path.read_bytes().decode("latin-1")


def test_the_web_gives_the_clips_the_files_give(web: WebServer, tmp_path: Path) -> None:
    out = curated(web, tmp_path)
    curate([str(tmp_path / "raw")], str(tmp_path / "local"), CONFIG)
    assert verify(open_storage(out)).problems == []
    rows, local = (open_dataset(folder).index.to_pylist() for folder in (out, tmp_path / "local"))
    assert sorted(row["sha256"] for row in rows) == sorted(row["sha256"] for row in local)
    assert {(row["caption"], row["attributes"][0]) for row in rows} == {
        ("Two scenes.", ("licence", "CC0")),
        ("", ("licence", "CC BY 4.0")),
    }
    states = {row["source"]: row["state"] for row in open_dataset(out).accounting.to_pylist()}
    assert states[f"{web.url}/gone.mp4"] == "failed"


def test_sources_whose_server_gave_no_answer_are_said_and_asked_again(web: WebServer, tmp_path: Path) -> None:
    def busy(handler: BaseHTTPRequestHandler) -> bool:
        if "other" in handler.path:
            handler.send_error(503)
        return "other" in handler.path

    web.script = busy
    out = curated(web, tmp_path)
    found = curate([str(tmp_path / "list.csv")], str(out), CONFIG)
    assert found.already_there
    told = "1 sources failed since their web servers gave no answer"
    assert [note for note in found.notes if told in note and f"{web.url}/other.mp4" in note]
    web.script = lambda _: False
    again = curate([str(tmp_path / "list.csv")], str(out), CONFIG, retry_failed=True)
    assert not [note for note in again.notes if told in note]
    assert len(open_dataset(out).index.to_pylist()) == 3


@thorough
def test_connections_that_break_cost_no_clip(web: WebServer, tmp_path: Path) -> None:
    web.cut_after = [700] * 3
    rows = open_dataset(curated(web, tmp_path)).index.to_pylist()
    assert web.cut_after == []
    assert len(rows) == 3


def test_what_lets_one_in_is_written_nowhere(
    web: WebServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = curated(web, tmp_path)
    texts = {path: text(path) for path in out.rglob("*") if path.is_file()}
    assert any(web.url in found for found in texts.values())
    assert not [path for path, found in texts.items() if SECRET in found]
    assert SECRET not in caplog.text
