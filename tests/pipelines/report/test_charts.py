"""Charts are drawn in a browser from valid specifications, and say the same as a table without scripts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.curves import lines
from reelweave.pipelines.report.web.distributions import bars, histogram, overlaid
from reelweave.pipelines.report.web.files import Files, assets, publish
from reelweave.pipelines.report.web.template import render
from tests.browser import PHONE_PX, Browser, draw_all
from tests.thorough import beyond

NASTY = "</script><img src=x onerror=alert(1)> 'quoted' \u2028"


def charts() -> Iterator[Chart]:
    yield histogram(
        "h", NASTY, [0, 1, 2.5], {"kept": [3, 4], "filtered": [0, 9]}, {NASTY: 1.5, "max": 4}, NASTY
    )
    yield histogram("one", "one series", [0, 1], {"clips": [7]})
    yield bars("b", "bars", {NASTY: {"kept": 3.0}, "none": {"failed": 2.0, "kept": 1.0}}, NASTY, note=NASTY)
    yield lines("l", "lines", {"a": [(0, 1.0), (1, 0.5)], NASTY: [(0, 2.0)]}, "step", "loss", log_y=True)
    yield lines("titles", NASTY, {NASTY: [(0, 1.0), (1, 2.0)]}, NASTY, NASTY, note=NASTY)
    yield overlaid("over", NASTY, [0, 1, 2.5], {NASTY: [3, 0], "none": [0, 0]}, NASTY)
    yield lines("nothing", "no points", {}, "step", "loss")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    words = {"title": NASTY, "subtitle": NASTY, "notes": [NASTY], "figures": [("7", NASTY)]}
    html = render("base.html", charts=list(charts()), **words)
    publish(open_storage(str(folder), StorageConfig()), "", html, {})
    return folder / "index.html"


@pytest.mark.parametrize("chart", list(charts()), ids=lambda chart: chart.name)
def test_specifications_are_those_of_vega_lite(chart: Chart) -> None:
    import altair  # takes seconds of every process that collects this file

    altair.Chart.from_dict({**chart.spec, "config": {}}, validate=True)


@pytest.mark.parametrize(("width", "dark"), beyond(1, [(PHONE_PX, True), (1280, False)]))
def test_they_are_drawn_under_the_policy_without_sideways_scrolling(
    page: Path, browser: Browser, width: int, dark: bool
) -> None:
    with browser.opened(page, width, dark) as opened:
        draw_all(opened)
        for name in ("h", "one", "b", "l", "titles", "over"):
            assert painted(opened, name) > 100
        assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_without_scripts_the_tables_hold_the_numbers(page: Path, browser: Browser) -> None:
    with browser.opened(page, scripts=False) as opened:
        rows = opened.locator("#h tbody tr")
        assert rows.all_text_contents() == ["0 to 130", "1 to 2.549"]
        opened.locator("#h summary").click()
        assert rows.first.is_visible()


def test_what_was_there_before_is_removed(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path), StorageConfig())
    for path in ("report/old.js", "report/kept.yaml", "reports.txt"):
        storage.write(path, b"before")
    publish(storage, "report/", "<p>", {"data/new.js": b"1"}, keep=["kept.yaml"])
    assert {found.path for found in storage.list("")} == {
        "reports.txt",
        *(f"report/{name}" for name in ("index.html", "data/new.js", "kept.yaml")),
        *(f"report/{name}" for name in assets()),
    }


def test_files_are_made_as_they_are_read() -> None:
    made: list[str] = []

    def make() -> bytes:
        made.append("b")
        return b"two"

    files = Files({"a": b"one", "b": b"before"}, Files({"b": make}))
    assert (len(files), list(files), "b" in files, "c" in files, made) == (2, ["a", "b"], True, False, [])
    assert dict(files) == {"a": b"one", "b": b"two"}
    assert made == ["b"]


def painted(opened: Any, name: str) -> int:
    """Pixels of a chart's canvas that are not empty."""
    return int(
        opened.evaluate(
            """(name) => {
                const canvas = document.querySelector(`#${name} canvas`);
                const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
                return data.filter((value, place) => place % 4 === 3 && value > 0).length;
            }""",
            name,
        )
    )
