"""What a served report of a million rows costs: the time to its first cards and to answers, memory of server and page.

    python -m tests.bench.report_served [--rows 1000000] [--dataset FOLDER]

Makes the tables of a dataset as `tests.bench.report_gallery` does (8 GB of memory for a million rows), or takes one
that was made before; starts `reelweave report --serve`, and opens its gallery in the system's Chromium.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from multiprocessing import Process
from pathlib import Path
from typing import Any

from tests.bench.report_gallery import make
from tests.browser import Browser, chromium

_ASKED = {
    "search": "q=gulls+circle+over+grey",
    "search_of_a_letter": "q=e",
    "state": "state=filtered",
    "order_by_score": "sort=motion%3Aup",
    "source": "source=part-003",
}
"""Facets of the gallery's address by what they measure."""


def main(arguments: list[str] | None = None) -> int:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dataset", type=Path)
    options = parser.parse_args(arguments)
    place = tempfile.TemporaryDirectory(prefix="reelweave-served-") if options.dataset is None else None
    with place or nullcontext() as name:
        folder = options.dataset or Path(name or "") / "dataset"
        if place:
            # In a process of its own, so that the browser and the server have this one's memory.
            maker = Process(target=make, args=(folder, options.rows))
            maker.start()
            maker.join()
        print(json.dumps(served(folder), indent=1))
    return 0


def served(folder: Path) -> dict[str, Any]:
    """Return seconds and megabytes of the server and the gallery it serves."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "reelweave.pipelines.cli", "report", str(folder), "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            url = said.split()[1]
            found: dict[str, Any] = {"server_ready_s": time.perf_counter() - began}
            found["server_ready_peak_mb"] = memory_mb(server.pid, "VmHWM")
            where = chromium()
            found |= {"browser": None} if where is None else read(where, url)
            found["server_peak_mb"] = memory_mb(server.pid, "VmHWM")
        finally:
            server.terminate()
    return found


def read(where: str, url: str) -> dict[str, Any]:
    """Return seconds from each question to its answer on the page, and the page's memory."""
    found: dict[str, Any] = {}
    with Browser(where) as browser, browser.opened(f"{url}gallery.html") as page:
        page.wait_for_selector("#cards a.card[data-ready]")
        found["first_cards_s"] = page.evaluate("performance.now()") / 1000
        page.wait_for_selector("body[data-ready]")
        for name, asked in _ASKED.items():
            began = time.perf_counter()
            page.evaluate(f"location.replace('#{asked}')")
            page.wait_for_selector(f"body[data-answered^='{asked} ']", timeout=60_000)
            page.wait_for_selector("#cards a.card[data-ready]")
            found[f"{name}_s"] = time.perf_counter() - began
            found[f"{name}_found"] = page.locator("#found").text_content()
        found["page_mb"] = max(memory_mb(pid, "VmRSS") for pid in renderers())
    with Browser(where) as browser, browser.opened(f"{url}index.html") as page:
        page.wait_for_selector("main")
        found["report_read_s"] = page.evaluate("performance.now()") / 1000
    return found


def renderers() -> list[int]:
    """Return the processes of the browser that hold pages."""
    lines = ((path, path.read_bytes()) for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return [int(path.parent.name) for path, line in lines if b"--type=renderer" in line]


def memory_mb(process: int, name: str) -> float:
    """Return the memory of a process, now (VmRSS) or at most (VmHWM)."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":" in line
    )
    return int(status[name].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
