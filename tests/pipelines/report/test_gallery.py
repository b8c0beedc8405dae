"""The gallery in a browser: every row of the accounting as a card, found by facets and words, at its own address."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from reelweave.loader.dataset import open_dataset
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.commands.look.report import write_report
from reelweave.pipelines.report.buckets import default_config
from reelweave.pipelines.report.gallery import files
from reelweave.pipelines.report.gallery.choice import pictured_rows
from reelweave.pipelines.report.numbers.dataset_map import dataset_map
from reelweave.pipelines.report.numbers.scores import Scores
from tests.browser import PHONE_PX, Browser
from tests.loader.stream_clips import make_sample, write
from tests.pipelines.report.conftest import LONG, NASTY
from tests.thorough import thorough


@pytest.fixture(scope="module")
def gallery(curated: Path) -> Path:
    write_report(open_dataset(curated), default_config(StorageConfig()))
    return curated / "report" / "gallery.html"


@contextmanager
def seen(browser: Browser, gallery: Path, asked: str = "", **options: Any) -> Iterator[Any]:
    """The page once all cards have their text."""
    with browser.opened(f"{gallery.as_uri()}#{asked}" if asked else gallery, **options) as page:
        settled(page)
        yield page


def settled(page: Any) -> None:
    page.wait_for_selector("body[data-ready]")
    page.wait_for_selector("#cards a.card:not([data-ready])", state="detached")


def texts(page: Any) -> list[str]:
    return list(page.locator("#cards .caption").all_text_contents())


def wait_found(page: Any, asked: str, count: int) -> None:
    """Wait until the page answers these facets with so many cards."""
    page.wait_for_selector(f"body[data-answered='{asked} {count}']")
    settled(page)


def rows(gallery: Path) -> list[dict[str, Any]]:
    return to_rows(open_dataset(gallery.parent.parent).accounting)


def test_every_row_has_a_card_with_its_text(gallery: Path, browser: Browser) -> None:
    dataset = open_dataset(gallery.parent.parent)
    captions = dict(zip(*dataset.index.select(["key", "caption"]).to_pydict().values(), strict=True))
    wanted = [captions[row["key"]] if row["state"] == "kept" else row["reason"] for row in rows(gallery)]
    with seen(browser, gallery) as page:
        assert sorted(texts(page)) == sorted(wanted)
        assert page.locator("#cards script, #cards b, #cards u").count() == 0
        assert page.locator("#cards img").count() == 4
        page.evaluate(
            """() => Promise.all([...document.images].map((one) => {
                one.loading = "eager";
                return one.decode();  // fails for what is no picture
            }))"""
        )
    assert any(NASTY[:20] in caption for caption in captions.values())
    assert any(len(caption) > 3000 for caption in captions.values())


@thorough
def test_a_phone_shows_it_without_sideways_scrolling(gallery: Path, browser: Browser) -> None:
    with seen(browser, gallery, width=PHONE_PX, dark=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX
        page.locator("#cards a.card[href]").nth(1).click()
        page.wait_for_selector("dialog[open] dl")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX


def test_facets_and_words_find_what_the_tables_hold(gallery: Path, browser: Browser) -> None:
    all_rows = rows(gallery)
    with seen(browser, gallery) as page:
        for state in ("kept", "filtered", "duplicate", "failed"):
            page.select_option("[name=state]", state)
            wait_found(page, f"state={state}", sum(row["state"] == state for row in all_rows))
            kinds = {(row["state"], row["stage"]) for row in all_rows if row["state"] == state}
            said = {"kept" if state == "kept" else f"{state}: {stage}" for _, stage in kinds}
            assert {
                text.partition(",")[0] for text in page.locator("#cards .state").all_text_contents()
            } == said
        page.locator("#all").click()
        wait_found(page, "", len(all_rows))
        for words, found in (("VERY long caption", LONG[:50]), ("onerror=alert(1)>", NASTY[:50])):
            page.fill("[name=q]", words)
            wait_found(page, f"q={quote_plus(words)}", 1)
            assert texts(page)[0].startswith(found)
        for name, value, other in (("source", "COPY of", ""), ("chars_from", "1000", "")):
            page.fill("[name=q]", "")
            page.fill(f"[name={name}]", value)
            wait_found(page, f"{name}={value.replace(' ', '+')}", 1)
            page.fill(f"[name={name}]", other)
        page.select_option("[name=score]", "short_side_px")
        page.fill("[name=score_to]", "99.5")
        wait_found(page, "score=short_side_px&score_to=99.5", 1)
        assert texts(page) == ["short_side_px 96 is below filters.min_short_side_px = 100"]


def test_what_is_typed_while_the_page_answers_stays(gallery: Path, browser: Browser) -> None:
    with seen(browser, gallery) as page:
        # Typed between the new address, which `toString` of the facets gives, and its event, as on a busy machine.
        page.evaluate(
            """() => {
                const { toString } = URLSearchParams.prototype;
                URLSearchParams.prototype.toString = function () {
                    URLSearchParams.prototype.toString = toString;
                    queueMicrotask(() => {
                        const field = document.querySelector("[name=score_to]");
                        field.value = "99.5";
                        field.dispatchEvent(new Event("input", { bubbles: true }));
                    });
                    return toString.call(this);
                };
            }"""
        )
        page.select_option("[name=score]", "short_side_px")
        wait_found(page, "score=short_side_px&score_to=99.5", 1)
        assert page.input_value("[name=score_to]") == "99.5"


def test_addresses_keep_facets_and_name_clips(gallery: Path, browser: Browser) -> None:
    (rejected,) = (row for row in rows(gallery) if row["state"] == "filtered")
    with seen(browser, gallery, f"state=filtered&stage={rejected['stage']}") as page:
        assert texts(page) == [rejected["reason"]]
    with seen(browser, gallery, f"source={quote(rejected['source'], safe='')}&state=filtered") as page:
        assert texts(page) == [rejected["reason"]]
    with seen(browser, gallery, rejected["key"]) as page:
        page.wait_for_selector("dialog[open] dl")
        assert page.locator("dialog h2").text_content() == rejected["key"]
        assert rejected["source"] in page.locator("dialog dl").text_content()
        page.locator("dialog summary").click()
        page.wait_for_selector("dialog td:has-text('rejected')")
        assert f"extract {gallery.parent.parent} {rejected['key']}" in page.locator("dialog").text_content()
        page.keyboard.press("Escape")
        page.wait_for_url(lambda url: rejected["key"] not in url)
        assert page.locator("dialog[open]").count() == 0


@thorough
def test_keys_lead_from_card_to_card_and_from_clip_to_clip(gallery: Path, browser: Browser) -> None:
    with seen(browser, gallery, "state=kept") as page:
        page.locator("#cards a.card").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.row") == page.locator("#cards a.card").nth(
            1
        ).get_attribute("data-row")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open] h2")
        second = page.locator("dialog h2").text_content()
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f"dialog:not([data-key='{second}'])")
        assert page.url.endswith(f"#{page.locator('dialog h2').text_content()}")
        page.keyboard.press("Escape")
        page.wait_for_url(lambda url: url.endswith("#state=kept"))


def test_duplicates_stand_beside_what_was_kept(gallery: Path, browser: Browser) -> None:
    with seen(browser, gallery, "groups=yes") as page:
        assert page.locator(".group").count() == 1
        states = page.locator(".group .state").all_text_contents()
        assert states == ["kept", "duplicate: dedup.source"]


@thorough
def test_counts_of_the_report_lead_to_their_clips(gallery: Path, browser: Browser) -> None:
    report = gallery.parent / "index.html"
    with browser.opened(report) as page:
        links = page.eval_on_selector_all(
            "a[href^='gallery.html#state=']", "(all) => all.map((one) => [one.href, one.textContent])"
        )
        assert len(links) >= 4
        for where, count in links:
            page.goto("about:blank")
            page.goto(where)
            wait_found(page, where.partition("#")[2], int(count))


def test_clips_that_were_left_out_have_pictures_or_the_page_says_why_not(
    gallery: Path, browser: Browser, tmp_path: Path
) -> None:
    shutil.copytree(gallery.parents[1], tmp_path / "dataset")
    shutil.rmtree(tmp_path / "dataset/.ledger")
    write_report(open_dataset(tmp_path / "dataset"), default_config(StorageConfig()))
    for page_file, ledger in ((gallery, True), (tmp_path / "dataset/report/gallery.html", False)):
        with browser.opened(page_file) as page:
            page.wait_for_selector("body[data-ready]")
            page.wait_for_selector("#cards a.card:not([data-ready])", state="detached")
            filtered = page.locator("a.card", has=page.locator(".state.filtered"))
            assert filtered.count() == 1
            assert filtered.locator("img").count() == ledger
            told = filtered.locator(".strip").text_content()
            assert told == ("" if ledger else "not in the ledger, no picture")
            notes = page.locator(".note").all_text_contents()
            assert len(notes) == (not ledger)
            assert ledger or "1 of the " in notes[0]
            assert ledger or "not in the curation's ledger" in notes[0]


def test_strips_hold_evenly_spread_frames(gallery: Path) -> None:
    for path in (gallery.parent / "pictures").glob("*.jpg"):
        with Image.open(path) as picture:
            assert max(picture.width / 8, picture.height) == 240
            frames = np.asarray(picture.convert("L"), np.int16).reshape(picture.height, 8, -1)
            # The footage counts its frames in blocks, so none equals the next.
            assert all(np.abs(frames[:, place] - frames[:, place + 1]).max() > 30 for place in range(7))


def test_pictured_rows_are_spread_over_kept_clips_and_reasons() -> None:
    states = ["kept"] * 100 + ["filtered"] * 60 + ["duplicate"] * 3
    stages = ["write"] * 100 + ["filter.motion"] * 50 + ["removal"] * 10 + ["dedup.exact"] * 3
    table = pa.table(
        {
            "key": [f"{number:04}" for number in range(163)],
            "state": states,
            "stage": stages,
            "start_s": [0.0] * 163,
            "duplicate_of": pa.array([None] * 160 + ["0007", "0007", "0099"], pa.string()),
        }
    )
    found = pictured_rows(table, 4, 2).tolist()
    assert found[:4] == [12, 37, 62, 87]
    assert found[4:9] == [7, 160, 161, 99, 162]
    assert found[9:] == [112, 137]  # nothing that was taken down
    assert pictured_rows(table, 0, 0).tolist() == []


@thorough
def test_chunks_are_loaded_as_they_are_needed(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK_ROWS", 10)
    monkeypatch.setattr(files, "CHUNK_SOURCES", 10)
    write(tmp_path, [make_sample(f"key{number:03}", b"clip", 9, (80, 64)) for number in range(120)])
    write_report(open_dataset(tmp_path), default_config(StorageConfig()))
    gallery = tmp_path / "report/gallery.html"
    with seen(browser, gallery) as page:
        loaded = page.locator("script[src^='data/clips']").count()
        assert loaded < 12
        page.fill("[name=q]", "the caption of key117")
        wait_found(page, "q=the+caption+of+key117", 1)
        assert texts(page) == ["the caption of key117"]
        assert page.locator("script[src^='data/clips']").count() == 12
    with seen(browser, gallery) as page:
        for card in (49, 97, 120):
            page.evaluate("scrollTo(0, document.body.scrollHeight)")
            page.wait_for_selector(f"#cards a.card:nth-child({card})", state="attached")
    with seen(browser, gallery, "key119") as page:
        page.wait_for_selector("dialog[open] h2:has-text('key119')")


@thorough
def test_a_dataset_of_nothing_and_of_one_clip(tmp_path: Path, browser: Browser) -> None:
    for count in (0, 1):
        folder = tmp_path / str(count)
        write(folder, [make_sample("key", b"no video", 9, (80, 64))] * count)
        write_report(open_dataset(folder), default_config(StorageConfig()))
        with seen(browser, folder / "report/gallery.html") as page:
            assert page.locator("#cards a.card").count() == count
            assert page.locator("#found").text_content() == f"{count} of {count} clips and spans"


def test_long_captions_are_cut_to_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CAPTION_BYTES", 300)
    samples = [make_sample(key, b"no video", 9, (80, 64)) for key in ("a", "b")]
    samples[0].row["caption"] = "word " * 200
    write(tmp_path, samples)
    dataset, config = open_dataset(tmp_path), default_config(StorageConfig())
    made = files.make_gallery(dataset, config, dataset_map(dataset, config), Scores.of(dataset)).files
    content = json.loads(made["data/clips-0001.js"].decode().partition(",")[2].removesuffix(");\n"))
    assert [len(caption) for caption in content["caption"]] == [284, 16]
    about = json.loads(made["data/rows.js"].decode().partition(",")[2].removesuffix(");\n"))
    assert about["mostChars"] == 284
