"""Reports of datasets with no clip and with one, in a browser."""

import json
from pathlib import Path

import pytest

from reelweave.loader.dataset import Content, publish
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from tests.browser import Browser, draw_all
from tests.loader.stream_clips import make_sample, write
from tests.thorough import beyond

SHAPES = [(batch, length) for length in (1000, 2000, 4000, 8000) for batch in (1, 2)]


@pytest.mark.parametrize("clips", beyond(1, [0, 1]))
def test_every_page_opens(
    clips: int, tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, bench = tmp_path / "dataset", tmp_path / "bench.csv"
    if clips:
        write(folder, [make_sample("only", b"no video", 17, (112, 64))])
    else:
        publish(open_storage(folder), [], Content([], []))
    steps = [f"{batch},{length},{0.2 + 1e-5 * batch * length},30" for batch, length in SHAPES]
    bench.write_text("\n".join(["batch,length,step_s,peak_gib", *steps]))
    every = ["--world-size", "16", "--shapes", str(bench), "--target-step-s", "1"]
    for words in ([], every):
        capsys.readouterr()
        assert main(["report", str(folder), *words, "--json"]) == 0, words
        found = json.loads(capsys.readouterr().out)
        with browser.opened(Path(found["report"])) as page:
            draw_all(page)
            assert page.locator("figure.chart").count() > 0
    with browser.opened(folder / "report/gallery.html") as page:
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#cards a.card").count() == clips
