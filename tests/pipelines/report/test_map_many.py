"""A map of more points than Vega draws: painted where its axes have them, chosen and clicked as few are."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.commands.look.report import write_report
from reelweave.pipelines.report.buckets import default_config
from tests.bench.report_map import make
from tests.browser import PHONE_PX, Browser, draw_all
from tests.thorough import thorough

CLIPS = 6000
_AT = """(place) => {
    const view = report.views.get("map"), marks = document.querySelector("#map canvas.marks").getBoundingClientRect();
    const [left, top] = view.origin();
    return [marks.left + left + view.scale("x")(place[0]), marks.top + top + view.scale("y")(place[1])];
}"""
_PAINTED = """([x, y]) => {
    const canvas = document.getElementById("painted"), at = canvas.getBoundingClientRect();
    const fine = canvas.width / at.width;
    return canvas.getContext("2d").getImageData((x - at.left) * fine, (y - at.top) * fine, 1, 1).data[3];
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    make(folder, CLIPS, 8)
    config = default_config(StorageConfig()).model_copy(update={"max_mapped": CLIPS, "max_clips": 0})
    write_report(open_dataset(folder), config)
    return folder / "report"


@thorough
def test_many_points_are_painted_where_the_axes_have_them(report: Path, browser: Browser) -> None:
    table = pd.read_parquet(report / "map.parquet")
    drawn = np.random.default_rng(0).choice(len(table), 50, replace=False)
    for width in (1280, PHONE_PX):
        with browser.opened(report / "map.html", width) as page:
            draw_all(page)
            page.wait_for_selector(f"body[data-ready='{CLIPS}']")
            assert page.get_attribute("#painted", "data-points") == str(CLIPS)
            page.locator("#map canvas.marks").scroll_into_view_if_needed()
            for row in drawn.tolist():
                at = page.evaluate(_AT, [float(table["x"][row]), float(table["y"][row])])
                assert page.evaluate(_PAINTED, at) > 0
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@thorough
def test_a_rectangle_and_a_click_choose_among_all_points(report: Path, browser: Browser) -> None:
    table = pd.read_parquet(report / "map.parquet")
    with browser.opened(report / "map.html") as page:
        draw_all(page)
        page.wait_for_selector(f"body[data-ready='{CLIPS}']")
        limits = [-0.2, 0.1, -0.1, 0.3]
        for name, value in zip(("x_from", "x_to", "y_from", "y_to"), limits, strict=True):
            page.fill(f"[name={name}]", str(value))
        inside = table["x"].between(*limits[:2]) & table["y"].between(*limits[2:])
        assert 0 < inside.sum() < CLIPS
        page.wait_for_selector(f"#selection[data-chosen='{inside.sum()}']")
        # The clip whose neighbours on the map are farthest, among those that Vega does not draw.
        points = table.loc[~table["is_outlier"], ["x", "y"]].to_numpy()
        ends = {int(of(points[:, axis])) for axis in (0, 1) for of in (np.argmin, np.argmax)}
        apart = [np.partition(((points - point) ** 2).sum(1), 1)[1] for point in points]
        alone = max(set(range(len(points))) - ends, key=lambda place: apart[place])
        key = table.loc[~table["is_outlier"], "key"].iloc[alone]
        page.locator("#map canvas.marks").scroll_into_view_if_needed()
        page.mouse.click(*page.evaluate(_AT, points[alone].tolist()))
        page.wait_for_selector(f"dialog[open] >> text={key}")
