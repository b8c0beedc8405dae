"""Screenshots of the reports for README and docs, taken from a finished demo, and of the buckets of a workload.

    python -m tests.bench.screenshots [DEMO] [--out docs/pictures] [--workload-only]

DEMO is the folder that `reelweave demo --out` wrote, by default `demo-out`.
"""

import argparse
import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.browser import Browser, chromium, draw_all

_PICTURES = (
    ("report", "dataset/report/index.html", None),
    ("scores", "dataset/report/index.html", "#scores-section"),
    ("sampled", "dataset/report/index.html", "#sampled"),
    ("gallery", "dataset/report/gallery.html", None),
    ("map", "dataset/report/map.html", None),
    ("run", "train/report/index.html", None),
)
"""Name, page of the demo, and the section at the top of the window; None: the page's top."""
_WORKLOAD = ("report", "--workload", "koala-wide", "--world-size", "16", "--json")
_WIDTH_PX = 1200
_QUALITY = 85


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", nargs="?", type=Path, default=Path("demo-out"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--workload-only", action="store_true", help="take only those of the workload")
    options = parser.parse_args()
    where = chromium()
    if where is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, Browser(where) as browser:
        subprocess.run(
            [sys.executable, "-m", "reelweave.pipelines.cli", *_WORKLOAD, "--out", folder],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for name, section in (("buckets", "#buckets"), ("steps", "#policies")):
            with browser.opened(Path(folder) / "index.html", _WIDTH_PX) as page:
                draw_all(page)
                page.locator(section).evaluate("(one) => one.scrollIntoView()")
                _save(page, options.out / f"{name}.webp")
        for name, path, section in () if options.workload_only else _PICTURES:
            with browser.opened(options.demo / path, _WIDTH_PX) as page:
                draw_all(page)
                if "gallery" in path:
                    page.wait_for_selector(".card img")
                if section:
                    page.locator(section).evaluate("(heading) => heading.scrollIntoView()")
                _save(page, options.out / f"{name}.webp")


def _save(page: Any, path: Path) -> None:
    from PIL import Image

    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, quality=_QUALITY, method=6)
    print(f"{path}  {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
