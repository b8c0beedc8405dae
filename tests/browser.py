"""The system's Chromium, which opens pages of reports as a reader does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

PHONE_PX = 390


def chromium() -> str | None:
    """Return the path of Chromium or Chrome; None without one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """A running browser without a window."""

    def __init__(self, where: str) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright()
        # A sandbox of its own needs rights that containers do not give.
        options = {"executable_path": where, "args": ["--no-sandbox", "--disable-gpu"]}
        self._browser = self._playwright.start().chromium.launch(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.close()
        self._playwright.__exit__(kind, error, trace)

    @contextmanager
    def opened(
        self, where: str | Path, width: int = 1280, dark: bool = False, scripts: bool = True
    ) -> Iterator[Any]:
        """Open a file or address, and yield its page of Playwright's; no error and no other host may come of it.

        Args:
            where: path of a file, or URL.
            width: of the window, pixels.
            dark: whether the reader prefers dark pages.
            scripts: whether scripts run.
        """
        url = where.absolute().as_uri() if isinstance(where, Path) else where
        context = self._browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        wrong: list[str] = []
        allowed = (urlsplit(url).scheme, urlsplit(url).netloc)
        page = context.new_page()
        page.set_default_timeout(240_000)  # ends what hangs; a busy machine takes its time
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))

        def asked(request: Any) -> None:
            parts = urlsplit(request.url)
            if parts.scheme not in ("data", "blob") and (parts.scheme, parts.netloc) != allowed:
                wrong.append(f"asked for {request.url}")

        page.on("request", asked)
        try:
            page.goto(url)
            yield page
            assert not wrong, wrong
        finally:
            context.close()


def draw_all(page: Any) -> None:
    """Wait until every chart of a page is drawn, and fail where one cannot be."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    # By selectors: what is waited for by a function would be evaluated, which the page's policy forbids.
    page.wait_for_selector("figure.chart:not([data-drawn]):not([data-error])", state="detached")
    failed = page.eval_on_selector_all(
        "figure.chart[data-error]", "(all) => all.map((one) => `${one.id}: ${one.dataset.error}`)"
    )
    assert not failed, failed
