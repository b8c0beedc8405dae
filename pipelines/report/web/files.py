"""Files of a page in a folder of its own, which hold what the page needs and nothing from before."""

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.storage import Storage

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
    " media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
"""Content security policy of all pages: files beside the page, no other host, no script within the page.

Styles within elements stay allowed, because Vega sets them.
"""


_WRITERS = 16
"""Files written at once: on S3 each takes some 50 ms, and a gallery has hundreds of pictures."""


class Files(Mapping[str, bytes]):
    """Files by path, each made as it is read, so that memory holds few of them.

    Args:
        parts: content by path, or a function that makes it; a later part replaces files of an earlier one.
    """

    def __init__(self, *parts: "Mapping[str, bytes | Callable[[], bytes]] | Files") -> None:
        self._made: dict[str, bytes | Callable[[], bytes]] = {}
        for part in parts:
            self._made.update(part._made if isinstance(part, Files) else part)

    def __getitem__(self, path: str) -> bytes:
        content = self._made[path]
        return content if isinstance(content, bytes) else content()

    def __contains__(self, path: object) -> bool:
        return path in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def publish(
    storage: Storage, folder: str, page: str, beside: Mapping[str, bytes], keep: Collection[str] = ()
) -> str:
    """Write a page, and before it the files that it names; remove all else from its folder.

    Args:
        storage: storage that holds the folder.
        folder: prefix of the page's own, such as ``report/``.
        page: HTML of ``index.html``.
        beside: further files by their paths in the folder.
        keep: paths in the folder that others wrote and that stay.

    Returns:
        URI of the page.
    """
    written = Files(assets(), beside)
    with ThreadPoolExecutor(_WRITERS) as writers:
        pending: deque[Future[None]] = deque()
        for path in written:
            if len(pending) == 2 * _WRITERS:
                pending.popleft().result()
            pending.append(writers.submit(storage.write, folder + path, written[path]))
        for write in pending:
            write.result()  # an error of a writer is raised before the page is written
    index = f"{folder}index.html"
    storage.write(index, page.encode())
    stay = {index, *(folder + path for path in (*written, *keep))}
    for info in list(storage.list(folder)):
        if info.path not in stay:
            storage.delete(info.path)
    return storage.uri(index)


def data_file(name: str, content: object) -> bytes:
    """Return the content of ``data/NAME.js``, a script that hands JSON values to its page (``assets/data.js``)."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data.receive({json.dumps(name)},{text});\n".encode()


@cache
def assets() -> dict[str, bytes]:
    """Return the scripts and styles of all pages by path: ours, and Vega-Lite in one file without network access."""
    ours = files("reelweave.pipelines.report.web").joinpath("assets")
    return {
        "assets/vega.js": _vega(),
        **{f"assets/{asset.name}": asset.read_bytes() for asset in ours.iterdir()},
    }


def _vega() -> bytes:
    """Return the bundle of Vega, Vega-Lite and Vega-Embed; made in 1.5 s, once per machine and version."""

    def make(path: Path) -> None:
        import vl_convert

        path.write_text(
            vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
            encoding="utf-8",
        )

    name = f"vega-embed-{version('vl-convert-python')}.js"
    return NodeFiles().file(name, make).read_bytes()
