"""`reelweave report RUN --serve`: the page follows a run, and nothing but its page, videos and timelines can be had."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.pipelines.cli import main
from reelweave.pipelines.report.serve.run_pages import RunPages
from reelweave.pipelines.report.serve.server import ReportServer
from tests.browser import Browser
from tests.pipelines.report.runs import cascaded, configured, recorded
from tests.pipelines.report.test_serve import ask, ask_anyhow, running
from tests.thorough import thorough

NASTY = "</script><img src=x onerror=alert(1)> \u2028"
VIDEO = b"\0\0\0\x18ftypmp42, as far as a server is concerned"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of some steps with a timeline and a validation video."""
    folder = tmp_path / "a run #1"
    recorded(folder, 30)
    cascaded(folder, 20)
    configured(folder, {"schedule": {"total_steps": 100}})
    validated(folder, 10)
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    return folder


def validated(folder: Path, step: int) -> None:
    at = folder / f"validation/step-{step:06d}"
    at.mkdir(parents=True)
    (at / "000.mp4").write_bytes(VIDEO)
    (at / "validation.json").write_text(
        json.dumps({"videos": [{"prompt": NASTY, "file": "000.mp4"}], "weights": "ema"})
    )


@pytest.fixture
def server(run: Path) -> Iterator[ReportServer]:
    with running(RunPages([run])) as started:
        yield started


def test_new_numbers_come_to_an_open_page(run: Path, server: ReportServer, browser: Browser) -> None:
    more = run.parent / "more"
    recorded(more, 60)
    lines = (more / "metrics.jsonl").read_text().splitlines(keepends=True)
    with browser.opened(server.url) as page:
        page.wait_for_selector("#loss[data-drawn]")
        page.wait_for_selector("body[data-version]")
        assert "30 of 100" in page.inner_text(".figures")
        page.evaluate("document.querySelector('#configuration ~ details').open = true")
        page.evaluate("window.opened = 1; document.querySelector('video').dataset.mine = 'yes'")
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(lines[30:45])
            file.write(lines[45][:20])  # a line that is being written
            file.flush()
            page.wait_for_selector(".figures:has-text('45 of 100')")
            page.wait_for_selector("#loss[data-drawn]")
            spec = json.loads(page.locator("#loss script.spec").text_content())
            assert max(value["x"] for value in spec["data"]["values"]) == 45
            file.write("".join([lines[45][20:], *lines[46:]]))
        page.wait_for_selector(".figures:has-text('60 of 100')")
        # What did not change is as it was: the page was not loaded anew.
        assert page.evaluate("window.opened") == 1
        assert page.evaluate("document.querySelector('video').dataset.mine") == "yes"
        assert page.evaluate("document.querySelector('#configuration ~ details').open")
        validated(run, 20)
        page.wait_for_selector(".sheet th:has-text('step 20')")
        assert page.locator("video").count() == 2
        assert page.locator(".sheet tbody th").all_text_contents() == [NASTY]


@thorough
def test_videos_and_timelines_are_read_from_the_run(
    run: Path, server: ReportServer, browser: Browser
) -> None:
    assert ask(server, "/runs/0/validation/step-000010/000.mp4")[2] == VIDEO
    status, headers, part = ask(server, "/runs/0/validation/step-000010/000.mp4", Range="bytes=4-7")
    assert (status, part, headers["Content-Type"]) == (206, b"ftyp", "video/mp4")
    with browser.opened(server.url) as page:
        where = page.get_attribute("a[href^='runs/0/timeline']", "href")
        page.goto(server.url + where)
        assert page.locator("svg").count() == 1
    assert "script-src 'self'" in ask(server, "/")[1]["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/metrics.jsonl",
        "/runs/0/metrics.jsonl",
        "/runs/0/train.yaml",
        "/runs/0/checkpoints/step-000010/state.json",
        "/runs/0/validation/step-000010/validation.json",
        "/runs/0/validation/step-000010/../../train.yaml",
        "/runs/0/validation/step-000010/..%2f..%2f..%2fsecret.mp4",
        "/runs/0/validation/step-000011/000.mp4",
        "/runs/1/validation/step-000010/000.mp4",
        "/runs/-1/validation/step-000010/000.mp4",
        "/runs/00000/validation/step-000010/000.mp4",
        "/runs/0/timeline/step-000020.json",
        "/runs//validation/step-000010/000.mp4",
        "/runs/0/validation/step-000099/000.mp4",
        "/runs/0/validation/step-000010/099.mp4",
        "/../secret.mp4",
        "//etc/passwd",
        "/index.html%00",
    ],
)
def test_every_other_path_is_refused(run: Path, server: ReportServer, path: str) -> None:
    (run / "checkpoints/step-000010").mkdir(parents=True)
    (run / "checkpoints/step-000010/state.json").write_text("{}")
    # Links of the run lead nowhere outside of it.
    (run / "validation/step-000099").symlink_to(run.parent)
    shutil.copy(run.parent / "secret.mp4", run.parent / "000.mp4")
    (run / "validation/step-000010/099.mp4").symlink_to(run.parent / "secret.mp4")
    assert ask(server, path)[0] == 404


def test_nothing_is_written_and_nothing_made_while_nothing_changes(run: Path, server: ReportServer) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    first, second = (ask(server, "/")[2] for _ in range(2))
    assert first == second
    states = {ask(server, "/state.json")[2] for _ in range(3)}
    assert len(states) == 1
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_every_path_needs_the_token(server: ReportServer) -> None:
    for path in ("/", "/state.json", "/runs/0/validation/step-000010/000.mp4", "/secret/index.html"):
        assert ask_anyhow(server, path)[0] == 403
    assert ask(server, "/state.json", Host="evil.example")[0] == 421


def test_two_runs_are_followed_side_by_side(run: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "other", 5)
    validated(tmp_path / "other", 4)
    with running(RunPages([run, tmp_path / "other"])) as server:
        assert b"Side by side" in ask(server, "/")[2]
        before = ask(server, "/state.json")[2]
        assert ask(server, "/runs/1/validation/step-000004/000.mp4")[2] == VIDEO
        recorded(tmp_path / "other", 9)
        # Pages are not made all the time: the bound is of one that never is.
        changed = (time.sleep(0.05) or ask(server, "/state.json")[2] != before for _ in range(4800))
        assert any(changed)


def test_a_folder_for_the_page_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--serve", "--out", str(run / "page")]) == 2
    assert "--serve writes none" in capsys.readouterr().err
