"""Files of a page in a folder of its own, which hold what the page needs and nothing from before."""

import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from loader.base.node_files import NodeFiles
from loader.storage import Storage

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
    " media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
"""Content security policy of all pages: files beside the page, no other host, no script within the page.

Styles within elements stay allowed, because Vega sets them.
"""


_WRITERS = 16
"""Files written at once: on S3 each takes some 50 ms, and a gallery has hundreds of pictures."""


def publish(
    storage: Storage, folder: str, page: str, beside: Mapping[str, bytes], keep: Collection[str] = ()
) -> str:
    """Write a page, and before it the files that it names; remove all else from its folder.

    Args:
        storage: where the folder lies.
        folder: prefix of the page's own, such as ``report/``.
        page: HTML of ``index.html``.
        beside: further files by their paths in the folder.
        keep: paths in the folder that others wrote and that stay.

    Returns:
        URI of the page.
    """
    written = {**assets(), **beside}
    with ThreadPoolExecutor(_WRITERS) as writers:
        # A list, so that the first error of a writer is raised before the page is written.
        list(writers.map(lambda path: storage.write(folder + path, written[path]), written))
    index = f"{folder}index.html"
    storage.write(index, page.encode())
    stay = {index, *(folder + path for path in (*written, *keep))}
    for found in list(storage.list(folder)):
        if found.path not in stay:
            storage.delete(found.path)
    return storage.uri(index)


def data_file(name: str, content: object) -> bytes:
    """Return the content of ``data/NAME.js``, a script that hands JSON values to its page (``assets/data.js``)."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"data.receive({json.dumps(name)},{text});\n".encode()


@cache
def assets() -> dict[str, bytes]:
    """Return the scripts and styles of all pages by path: ours, and Vega-Lite in one file without network access."""
    ours = files("pipelines.report.web").joinpath("assets")
    return {
        "assets/vega.js": _vega(),
        **{f"assets/{found.name}": found.read_bytes() for found in ours.iterdir()},
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
