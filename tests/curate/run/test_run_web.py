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
from reelweave.loader.errors import MachineError
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


def busy(handler: BaseHTTPRequestHandler) -> bool:
    """Answer 503 for one of the films."""
    if "other" in handler.path:
        handler.send_error(503)
    return "other" in handler.path


def test_a_source_whose_server_gives_no_answer_is_left_undone_once(web: WebServer, tmp_path: Path) -> None:
    web.script = busy
    with pytest.raises(
        MachineError, match=r"1 of 3 sources are left undone.*other\.mp4.*1 source lies on web"
    ) as error:
        curated(web, tmp_path)
    assert error.value.lasts
    assert not (tmp_path / "dataset/manifest.json").exists()
    web.script = lambda _: False
    out = curated(web, tmp_path)  # the same command goes on
    assert len(open_dataset(out).index.to_pylist()) == 3
    assert not list(out.glob(".ledger/killed/*"))


@thorough
def test_sources_whose_server_gave_no_answer_twice_are_said_and_asked_again(
    web: WebServer, tmp_path: Path
) -> None:
    web.script = busy
    with pytest.raises(MachineError):
        curated(web, tmp_path)
    out = curated(web, tmp_path)
    found = curate([str(tmp_path / "list.csv")], str(out), CONFIG)
    assert found.already_there
    told = "1 source failed since their web servers gave no answer in two runs"
    assert [note for note in found.notes if told in note and f"{web.url}/other.mp4" in note]
    web.script = lambda _: False
    again = curate([str(tmp_path / "list.csv")], str(out), CONFIG, retry_failed=True)
    assert not [note for note in again.notes if told in note]
    assert len(open_dataset(out).index.to_pylist()) == 3


def test_a_server_that_goes_after_a_dataset_is_made_costs_no_clip(web: WebServer, tmp_path: Path) -> None:
    out = curated(web, tmp_path)
    before = open_dataset(out).index
    web.script = busy
    again = curate([str(tmp_path / "list.csv")], str(out), CONFIG)
    assert again.already_there
    assert [note for note in again.notes if "1 source whose web server gives no answer" in note]
    stricter = CONFIG.model_copy(
        update={"filters": CONFIG.filters.model_copy(update={"max_black_share": 0.9})}
    )
    curate([str(tmp_path / "list.csv")], str(out), stricter, update=True)
    assert open_dataset(out).index.equals(before)


def test_a_list_whose_server_gives_no_answer_is_a_fault_of_the_machine(
    web: WebServer, tmp_path: Path
) -> None:
    web.files["/list.csv"] = b"url\nother.mp4\n"

    def silent(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_error(503)
        return True

    web.script = silent
    with pytest.raises(MachineError, match=r"list\.csv: gave up after"):
        curate([f"{web.url}/list.csv"], str(tmp_path / "dataset"), CONFIG)


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
