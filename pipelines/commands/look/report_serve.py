"""Serving of a report until Ctrl-C, for `reelweave report --serve`."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from reelweave.pipelines.terminal.console import print_json, stderr, stdout

if TYPE_CHECKING:
    from reelweave.pipelines.report.serve.server import Pages


def serve(pages: "Pages", options: argparse.Namespace, named: dict[str, Any]) -> None:
    """Serve pages until Ctrl-C, and say where.

    Args:
        pages: pages to serve.
        options: ``host``, ``port``, ``no_token`` and ``json``.
        named: description of the pages, for ``--json``.
    """
    from reelweave.pipelines.report.serve.server import ReportServer

    host = "127.0.0.1" if options.host is None else options.host
    with ReportServer(pages, host, options.port or 0, not options.no_token) as server:
        if options.json:
            print_json({**named, "url": server.url})
        else:
            stdout().print(f"report: {server.url} (Ctrl-C ends it)", markup=False, soft_wrap=True)
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            stderr().print("the report is served no more")
