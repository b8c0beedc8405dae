"""Screenshots of the reports for README and docs, taken from a finished demo.

    python -m tests.bench.screenshots [DEMO] [--out docs/pictures]

DEMO is the folder that `reelweave demo --out` wrote, by default `demo-out`.
"""

import argparse
import io
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
_WIDTH_PX = 1200
_QUALITY = 85


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", nargs="?", type=Path, default=Path("demo-out"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args()
    where = chromium()
    if where is None:
        raise SystemExit("no Chromium here: apt-get install chromium")
    with Browser(where) as browser:
        for name, path, section in _PICTURES:
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
