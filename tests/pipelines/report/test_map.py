"""The map in a browser and as a table: a rectangle on it opens the gallery with exactly its clips."""

import io
import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from reelweave.loader.dataset import Dataset, Sample, open_dataset
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.cli import main
from reelweave.pipelines.commands.look.report import NOT_READ, report_files, write_report
from reelweave.pipelines.report.buckets import ReportConfig, default_config
from reelweave.pipelines.report.numbers.dataset_map import MOST_OUTLIERS, SAMPLES, dataset_map
from tests.browser import PHONE_PX, Browser, draw_all
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.pipelines.report.conftest import NASTY
from tests.thorough import thorough

CLIPS = 60
ODD = 41  # is like no other
BARE = 7  # has no embedding
VIDEOS = (0, 1, ODD)


def key_of(number: int) -> str:
    return f"clip <b>'{number:03}\"&"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of three kinds with hostile keys and captions; a few can be decoded."""
    at = tmp_path_factory.mktemp("mapped")
    write_video(at / "a.mp4", (12,), size=(160, 96))
    video = (at / "a.mp4").read_bytes()
    drawn = np.random.default_rng(5)
    centres = drawn.standard_normal((3, 16))
    samples = []
    for number in range(CLIPS):
        vector = centres[number % 3] + 0.1 * drawn.standard_normal(16)
        vector = -centres.sum(0) if number == ODD else vector
        made = make_sample(key_of(number), video if number in VIDEOS else b"no video", 12, (160, 96))
        made.row["caption"] = f"{NASTY} {number}"
        made.row["scores"] = {"motion": number / 8, **({"aesthetic": 5.0} if number % 2 else {})}
        embedding = {"video.npy": vector.astype(np.float16)}
        samples.append(Sample(made.row, made.clip, {} if number == BARE else embedding))
    return write(at / "dataset", samples)


def config(**changes: object) -> ReportConfig:
    return default_config(StorageConfig()).model_copy(update=changes)


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    write_report(open_dataset(folder), config())
    return open_dataset(folder)


@pytest.fixture(scope="module")
def table(dataset: Dataset) -> pd.DataFrame:
    return pd.read_parquet(Path(dataset.storage.root) / "report/map.parquet")


def page_of(dataset: Dataset, name: str) -> Path:
    return Path(dataset.storage.root) / "report" / name


def test_the_table_holds_what_other_programs_want(dataset: Dataset, table: pd.DataFrame) -> None:
    """As `embedding-atlas map.parquet --x x --y y --text caption` reads it: pandas, floats, text."""
    index = dataset.index.to_pandas().set_index("key")
    assert sorted(table["key"]) == sorted(set(index.index) - {key_of(BARE)})
    assert table["x"].dtype == table["y"].dtype == np.float32
    assert np.isfinite(table[["x", "y", "outlier_score"]]).all(axis=None)
    for row in table.itertuples():
        assert row.caption == index.loc[row.key, "caption"]
        assert row.source == index.loc[row.key, "source"]
    number = table["key"].str.extract(r"(\d+)")[0].astype(int)
    assert (table["score_motion"] == number / 8).all()
    assert (table["score_aesthetic"].isna() == (number % 2 == 0)).all()
    assert table.loc[table["is_outlier"], "key"].tolist() == [key_of(ODD)]
    for _, row in table.iterrows():
        decodes = int(row["key"][9:12]) in VIDEOS
        assert (row["thumbnail"] is not None and not pd.isna(row["thumbnail"])) == decodes
        assert not decodes or page_of(dataset, row["thumbnail"]).is_file()


def test_json_says_what_the_table_says(
    folder: Path, table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["map"]
    assert said["clips"] == len(table) == CLIPS - 1
    assert (said["without_embedding"], said["left_out"], said["dimensions"]) == (1, 0, 16)
    assert said["outliers"]["count"] == 1
    assert [one["key"] for one in said["outliers"]["rows"]] == [key_of(ODD)]
    groups = table.groupby("cluster")
    assert [one["cluster"] for one in said["clusters"]] == sorted(groups.groups)
    for one in said["clusters"]:
        own = groups.get_group(one["cluster"])
        assert one["clips"] == len(own)
        assert one["x"] == pytest.approx(own["x"].mean(), abs=1e-6)
        assert one["y"] == pytest.approx(own["y"].mean(), abs=1e-6)
        assert set(one["keys"]) <= set(own["key"])
        assert len(one["keys"]) == min(SAMPLES, len(own))
        assert one["outliers"] == own["is_outlier"].sum()


def boxed(table: pd.DataFrame) -> tuple[list[float], pd.DataFrame]:
    """A rectangle around the clips of one cluster, exactly through the outermost, and all clips in it."""
    own = table[table["cluster"] == 2]
    limits = [float(of(own[axis])) for axis in ("x", "y") for of in (min, max)]
    inside = table["x"].between(*limits[:2]) & table["y"].between(*limits[2:])
    return limits, table[inside]


def test_a_rectangle_opens_the_gallery_with_exactly_its_clips(
    dataset: Dataset, table: pd.DataFrame, browser: Browser
) -> None:
    limits, inside = boxed(table)
    assert 3 < len(inside) < CLIPS - 1
    with browser.opened(page_of(dataset, "map.html")) as page:
        draw_all(page)
        page.wait_for_selector(f"body[data-ready='{CLIPS - 1}']")
        for name, value in zip(("x_from", "x_to", "y_from", "y_to"), limits, strict=True):
            page.fill(f"[name={name}]", repr(value))
        page.wait_for_selector(f"#selection[data-chosen='{len(inside)}']")
        page.click("#open")
        assert shown_captions(page, len(inside)) == sorted(inside["caption"])
        page.select_option("[name=place]", "outliers")
        page.fill("[name=map]", "")
        assert shown_captions(page, 1) == [f"{NASTY} {ODD}"]


@thorough
def test_a_rectangle_is_drawn_with_the_mouse(dataset: Dataset, table: pd.DataFrame, browser: Browser) -> None:
    with browser.opened(page_of(dataset, "map.html")) as page:
        draw_all(page)
        page.wait_for_selector(f"body[data-ready='{CLIPS - 1}']")
        page.locator("#map canvas").scroll_into_view_if_needed()
        canvas = page.locator("#map canvas").bounding_box()
        x, y, width, height = (canvas[of] for of in ("x", "y", "width", "height"))
        page.mouse.move(x + 0.1 * width, y + 0.05 * height)
        page.mouse.down()
        page.mouse.move(x + 0.5 * width, y + 0.9 * height, steps=4)
        page.mouse.up()
        page.wait_for_selector("#selection[data-chosen]:not([data-chosen='0'])")
        x_from, x_to, y_from, y_to = (
            float(page.input_value(f"[name={of}]")) for of in ("x_from", "x_to", "y_from", "y_to")
        )
        inside = table["x"].between(x_from, x_to) & table["y"].between(y_from, y_to)
        assert 0 < inside.sum() < CLIPS - 1
        assert page.get_attribute("#selection", "data-chosen") == str(inside.sum())
        page.click("#nothing")
        page.wait_for_selector("#selection[data-chosen='0']")


def shown_captions(page: Any, count: int) -> list[str]:
    page.wait_for_selector(f"body[data-answered$=' {count}']")
    page.wait_for_selector("#cards a.card:not([data-ready])", state="detached")
    return sorted(page.locator("#cards .caption").all_text_contents())


def test_clusters_and_outliers_have_frames_and_lead_to_their_clips(
    dataset: Dataset, table: pd.DataFrame, browser: Browser
) -> None:
    for options in ({"scripts": False}, {"width": PHONE_PX, "dark": True}):
        with browser.opened(page_of(dataset, "map.html"), **options) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= options.get("width", 1280)
            assert page.locator("main b").count() == 1  # ours: nothing of the keys becomes an element
            odd = page.locator(".frames").first.locator("a")
            assert odd.count() == 1
            assert odd.locator("img").count() == 1
            assert key_of(ODD) in odd.text_content()
    with browser.opened(page_of(dataset, "map.html")) as page:
        page.click("h3 a >> nth=1")
        own = table[table["cluster"] == 2]
        assert shown_captions(page, len(own)) == sorted(own["caption"])


def test_the_same_dataset_gives_the_same_map(dataset: Dataset) -> None:
    first, second = (report_files(dataset, config())[1] for _ in range(2))
    assert first == second


def test_columns_that_no_page_shows_need_not_be_read(dataset: Dataset) -> None:
    few = Dataset(dataset.storage, without=NOT_READ)
    assert report_files(few, config())[:2] == report_files(dataset, config())[:2]
    assert few.index.column_names == [name for name in dataset.index.column_names if name not in NOT_READ]
    assert pickle.loads(pickle.dumps(few)).index.equals(few.index)


@thorough
def test_a_report_does_without_pandas() -> None:
    code = """
import sys
from reelweave.pipelines.commands.look.report import spare_memory
import numpy, pyarrow
spare_memory()
assert numpy.asarray(pyarrow.chunked_array([[True, None]]))[0] and pyarrow.array([1.5]).to_numpy()[0] == 1.5
assert "pandas" not in sys.modules
import pandas
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_large_dataset_has_some_of_its_clips_on_the_map(dataset: Dataset) -> None:
    mapped = dataset_map(dataset, config(max_mapped=20))
    assert (len(mapped.row_M), mapped.left_out) == (20, CLIPS - 1 - 20)
    page = report_files(dataset, config(max_mapped=20))[1]["map.html"].decode()
    assert f"max_mapped={CLIPS - 1}" in page
    assert len(mapped.shown_rows) <= 10 * SAMPLES + MOST_OUTLIERS


def test_without_embeddings_a_sentence_stands_instead(dataset: Dataset, tmp_path: Path) -> None:
    for made, words in (
        (write(tmp_path / "bare", [make_sample("a", b"x", 9, (80, 64))]), "holds no video embeddings"),
        (write(tmp_path / "none", []), "holds no clips"),
    ):
        page, beside, _ = report_files(open_dataset(made), config())
        assert words in page
        assert "map.html" not in page
        assert not {"map.html", "map.parquet", "data/map.js"} & beside.keys()
    assert "switched off" in report_files(dataset, config(max_mapped=0))[0]


def test_a_damaged_embedding_is_named(tmp_path: Path) -> None:
    sample = make_sample("a", b"x", 9, (80, 64))
    folder = write(
        tmp_path / "damaged", [Sample(sample.row, sample.clip, {"video.npy": np.ones(4, np.float16)})]
    )
    (shard,) = (folder / "shards").glob("*.tar")
    with tarfile.open(shard) as tar:
        member = tar.getmember("a.video.npy")
    content = bytearray(shard.read_bytes())
    content[member.offset_data : member.offset_data + 6] = b"broken"
    shard.write_bytes(content)
    page, _, _ = report_files(open_dataset(folder), config())
    assert "a.video.npy is no vector" in page


@thorough
def test_one_and_two_clips_are_a_map(tmp_path: Path, browser: Browser) -> None:
    for count in (1, 2):
        samples = [make_sample(f"k{number}", b"x", 9, (80, 64)) for number in range(count)]
        made = [
            Sample(one.row, one.clip, {"video.npy": np.eye(2, 4, dtype=np.float32)[at]})
            for at, one in enumerate(samples)
        ]
        folder = write(tmp_path / str(count), made)
        write_report(open_dataset(folder), config(projection="umap"))
        with browser.opened(folder / "report/map.html") as page:
            draw_all(page)
            page.wait_for_selector(f"body[data-ready='{count}']")
        table = pd.read_parquet(io.BytesIO((folder / "report/map.parquet").read_bytes()))
        assert len(table) == count
        assert np.isfinite(table["x"]).all()
