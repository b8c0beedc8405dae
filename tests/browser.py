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
        self._context = self._browser.new_context()
        # A page that is opened anew costs two thirds of what it shows: its process, and the scripts it compiles.
        self._blank: list[Any] = []

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
        wrong: list[str] = []
        allowed = (urlsplit(url).scheme, urlsplit(url).netloc)

        def asked(request: Any) -> None:
            parts = urlsplit(request.url)
            if parts.scheme not in ("data", "blob") and (parts.scheme, parts.netloc) != allowed:
                wrong.append(f"asked for {request.url}")

        listeners = {
            "console": lambda said: wrong.append(said.text) if said.type == "error" else None,
            "pageerror": lambda error: wrong.append(str(error)),
            "request": asked,
        }
        with self._page(scripts) as page:
            page.set_default_timeout(240_000)  # ends what hangs; a busy machine takes its time
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if dark else "light")
            for event, listener in listeners.items():
                page.on(event, listener)
            page.goto(url)
            yield page
            assert not wrong, wrong
            for event, listener in listeners.items():
                page.remove_listener(event, listener)

    @contextmanager
    def _page(self, scripts: bool) -> Iterator[Any]:
        """Yield a blank page; one with scripts is used again unless its user fails."""
        if not scripts:
            context = self._browser.new_context(java_script_enabled=False)
            try:
                yield context.new_page()
            finally:
                context.close()
            return
        page = self._blank.pop() if self._blank else self._context.new_page()
        try:
            yield page
            page.goto("about:blank")
        except BaseException:
            page.close()
            raise
        self._blank.append(page)


def draw_all(page: Any) -> None:
    """Wait until every chart of a page is drawn, and fail where one cannot be."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    # By selectors: what is waited for by a function would be evaluated, which the page's policy forbids.
    page.wait_for_selector("figure.chart:not([data-drawn]):not([data-error])", state="detached")
    failed = page.eval_on_selector_all(
        "figure.chart[data-error]", "(all) => all.map((one) => `${one.id}: ${one.dataset.error}`)"
    )
    assert not failed, failed
