"""The page of a dataset: escaped, without network, the same for the same dataset; steps planned for it."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.foreign.run import index_tars
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.samples.copied_frames import CopiedFrames
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.cli import main
from reelweave.pipelines.commands.look.report import write_report
from reelweave.pipelines.report.buckets import PACKAGED, default_config
from reelweave.pipelines.report.clips.facts import clip_facts
from reelweave.pipelines.report.clips.lookup import find_rows
from reelweave.pipelines.report.numbers.bit_rates import bit_rates
from reelweave.pipelines.report.numbers.dataset import dataset_numbers
from tests.browser import PHONE_PX, Browser, draw_all
from tests.foreign_tars import by_tarfile
from tests.held import held_film
from tests.media import write_video
from tests.thorough import thorough

NASTY = "<script>alert('x')</script><img src=http://example.org/x.png onerror=alert(1)> \"'&"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "a.mp4", (40,), size=(320, 192))
    write_video(folder / "b <b>& 'c'.mp4", (40,), size=(192, 320), first_scene=5)
    (folder / "a.txt").write_text(NASTY)
    (folder / "<u>empty.mp4").touch()
    out = folder / "dataset"
    curate(
        [str(folder)],
        str(out),
        CurateConfig.model_validate(
            {"run": {"runner": "sequential", "isolate": False}, "spans": {"min_clip_s": 1}}
        ),
    )
    return out


@pytest.fixture(scope="module")
def html(dataset: Path) -> str:
    return Path(write_report(open_dataset(dataset), default_config(StorageConfig()))).read_text()


def test_the_report_has_the_bit_rates_of_clips(dataset: Path) -> None:
    found = open_dataset(dataset)
    rows = to_rows(found.index)
    mbps = [
        8e-6 * member["size"] / row["duration_s"]
        for row in rows
        for member in row["members"]
        if member["suffix"] == "mp4"
    ]
    told = bit_rates(found)
    totals = found.manifest.totals
    assert told.mean == pytest.approx(8e-6 * totals.clip_bytes / totals.duration_s)
    assert told.largest == pytest.approx(max(mbps))
    assert told.counts == np.histogram(mbps, told.edges)[0].tolist()
    assert sum(told.counts) == len(rows)
    page = Path(write_report(found, default_config(StorageConfig()))).read_text()
    assert "Bit rate of kept clips, Mbit/s" in page
    assert f"{told.mean:.3g} Mbit/s (at most {told.largest:.3g})" in page


def test_the_time_to_curate_is_said_of_those_of_whom_it_is_known(dataset: Path, tmp_path: Path) -> None:
    """Its column was empty without a word where no source of the page was among the slowest."""
    own = Path(shutil.copytree(dataset, tmp_path / "dataset"))
    status = own / ".ledger/status.json"
    note = json.loads(status.read_text())
    named = note["slowest"][0][0]
    for slowest, is_shown in (([["raw/gone.mp4", 5.0], [named, 0.0]], False), ([[named, 12.34]], True)):
        status.write_text(json.dumps({**note, "slowest": slowest}))
        page = Path(write_report(open_dataset(own), default_config(StorageConfig()))).read_text()
        assert ("time to curate</th>" in page, "12.3 s</td>" in page) == (is_shown, is_shown)
        assert ("that took longest in the last run" in page) == is_shown


def test_the_page_and_the_clip_say_which_frames_are_copies(tmp_path: Path) -> None:
    options = {"g": "20", "x264-params": "scenecut=0:keyint_min=20"}
    write_video(tmp_path / "a.mp4", (31, 49), size=(320, 192), options=options)
    write_video(tmp_path / "b.mp4", (40,), size=(320, 192), codec="mpeg4", first_scene=5)
    values = {
        "run": {"runner": "sequential", "isolate": False},
        "spans": {"min_clip_s": 1},
        "cut": {"mode": "smart"},
    }
    out = tmp_path / "dataset"
    curate([str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")], str(out), CurateConfig.model_validate(values))
    dataset = open_dataset(out)
    config = default_config(StorageConfig())
    write_report(dataset, config)
    page = (out / "report" / "index.html").read_text()
    rows = {row["start_s"]: row for row in to_rows(dataset.index) if row["source"].endswith("a.mp4")}
    clips = {start_s: CopiedFrames.of_scores(row["scores"]) for start_s, row in rows.items()}
    copied = sum(clip.copied for clip in clips.values() if clip is not None)
    frames = sum(row["frames"] for row in rows.values())
    assert 0 < copied < frames
    assert f"{len(rows)} clips: smart, {copied} of {frames} frames copied" in page
    assert "1 clip: encoded: its codec is mpeg4, not h264 (accounting.parquet, reason)" in page
    assert "copied_frames" in page  # among the scores
    # The second clip begins 9 frames before a key frame.
    row = rows[max(rows)]
    fact = clip_facts(dataset, find_rows(dataset, row["key"])[0], config.buckets)
    told = clips[max(rows)]
    assert told is not None
    assert told.encoded_start == 9
    size = next(member["size"] for member in row["members"] if member["suffix"] == "mp4")
    assert fact["mbps"] == pytest.approx(8e-6 * size / row["duration_s"])
    assert fact["pictures"] == f"9 to {row['frames'] - 1} copied, 9 encoded"


def test_what_came_from_outside_is_text(html: str) -> None:
    page = Page(html)
    assert not {"u", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert "b <b>& 'c'.mp4" in page.text
    assert "<u>empty.mp4" in page.text


def test_scripts_are_files_beside_the_page_and_nothing_comes_from_elsewhere(dataset: Path, html: str) -> None:
    page = Page(html)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    for script in scripts:
        if script.get("type") != "application/json":
            assert (dataset / "report" / str(script["src"])).is_file()
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action"):
            where = attributes.get(name) or "#"
            assert where.startswith(("data:", "#", "assets/", "gallery.html", "map.html")), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in html
    policy = str(next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes))
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy


def test_it_opens_in_a_browser_with_all_its_charts(dataset: Path, html: str, browser: Browser) -> None:
    assert html
    for width, dark in ((1280, False), (PHONE_PX, True)):
        with browser.opened(dataset / "report/index.html", width, dark) as page:
            draw_all(page)
            assert "<u>empty.mp4" in page.inner_text("main")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            reason = page.locator("#lost tbody tr td:nth-child(2)").first
            box = reason.bounding_box()
            assert "empty" in reason.inner_text()
            assert box["x"] + box["width"] <= width  # on the screen, a phone's too


def test_the_bucket_table_has_a_row_per_bucket_in_use(html: str) -> None:
    assert re.search(r"33 x 176 x 320", html)
    assert re.search(r"33 x 320 x 176", html)


def test_buckets_whose_samples_exceed_the_budget_come_with_advice(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def page(*options: str) -> str:
        assert main(["report", str(dataset), *options]) == 0
        said = capsys.readouterr().out
        html = (dataset / "report/index.html").read_text()
        assert ("sequence-parallel" in said) == ("sequence-parallel" in html)
        return html

    assert "sequence-parallel" not in page()
    html = page("--set", "buckets.compute_budget=1e6")
    assert re.search(r"33 x \d+ x \d+ costs [\d.e+]+ times as much", html)
    # A call without buckets keeps those of the page, not the package's.
    assert page() == html
    page("--config", str(PACKAGED))


def test_the_same_dataset_gives_the_same_page(dataset: Path, html: str) -> None:
    again = Path(write_report(open_dataset(dataset), default_config(StorageConfig()))).read_text()
    assert again == html


def test_steps_are_planned_for_a_dataset_from_its_index(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (dataset / "report/index.html").exists()
    asked = ["plan", str(dataset), "--microbatches", "1", "--steps", "3", "--json", "--world-size"]
    assert main([*asked, "2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["workload"] == str(dataset)
    assert said["policies"]["balanced"]["image_share_std"] == 0
    assert 0 <= said["idle"] < 1
    assert (dataset / "report/index.html").exists() == before
    assert main([*asked, "64"]) == 2
    assert "cannot fill the 64 microbatches of a step" in capsys.readouterr().err
    assert main([*asked, "64", "--regime", "pack"]) == 2
    assert "cannot fill the 64 microbatches of a step" in capsys.readouterr().err


def test_steps_are_planned_for_a_blend(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text(f"splits: {{train: {{blend: [{{path: {dataset}}}], epoch_samples: 50}}}}")
    out = tmp_path / "plan.parquet"
    asked = ["--world-size", "2", "--microbatches", "2", "--steps", "2", "--plan-out", str(out)]
    assert main(["plan", str(mix), *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workload"] == str(mix)
    assert sum(pq.read_table(out).to_pydict()["B"]) > 2  # more than the dataset has samples
    assert main(["report", str(mix)]) == 2
    assert f" plan {mix}" in capsys.readouterr().err


def test_packs_are_planned_for_a_dataset_over_its_epochs(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.parquet"
    asked = ["--world-size", "1", "--microbatches", "1", "--steps", "4", "--set", "buckets.memory_tokens=300"]
    assert main(["plan", str(dataset), "--regime", "pack", *asked, "--plan-out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["padding"] == 0
    plan = pq.read_table(out).to_pydict()
    # Two clips of unlike shapes, each too long to share a pack: every other step has the same one.
    assert plan["step"] == [0, 1, 2, 3]
    assert len(set(plan["bucket"])) == len(set(plan["bucket"][:2])) == 2


@thorough
def test_a_report_that_is_killed_leaves_no_page_without_its_configuration(
    curated: Path, tmp_path: Path
) -> None:
    """`curate` goes by the page whether a report is left to be written."""
    place = tmp_path / "dataset"
    shutil.copytree(curated, place)
    shutil.rmtree(place / "report", ignore_errors=True)
    code = """
import os, sys
from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import StorageConfig
from reelweave.loader.storage.local import LocalStorage
from reelweave.pipelines.commands.look.report import write_report
from reelweave.pipelines.report.buckets import default_config
write = LocalStorage.write
def until_the_page(self, path, *rest, **how):
    write(self, path, *rest, **how)
    if path == "report/index.html":
        os._exit(9)
LocalStorage.write = until_the_page
dataset = open_dataset(sys.argv[1], StorageConfig())
write_report(dataset, default_config(StorageConfig()))
"""
    ended = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=False)
    assert ended.returncode == 9, ended.stderr
    assert (place / "report/index.html").exists()
    assert (place / "report/buckets.yaml").exists()


def test_hours_and_durations_have_the_time_for_which_last_pictures_are_held(tmp_path: Path) -> None:
    media = held_film(tmp_path, "a.gif").read_bytes()
    by_tarfile(tmp_path / "tars/0.tar", [("a", {"gif": media, "txt": b"A boat."})])
    index_tars(str(tmp_path / "tars"), workers=1)
    dataset = open_dataset(tmp_path / "tars")
    numbers = dataset_numbers(dataset, default_config(StorageConfig())).to_json()
    assert dataset.manifest.totals.duration_s == pytest.approx(4.9)  # 20 frames of 0.1 s alone are 2 s
    assert numbers["hours"] == pytest.approx(4.9 / 3600)
    assert numbers["duration_s"]["edges"][:1] == [3.0]
