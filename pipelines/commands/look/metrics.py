"""Serve numbers of curations and training runs to Prometheus, until Ctrl-C or SIGTERM.

It reads what they write into their folders, so it slows none of them, and it still answers when one has died. Metrics,
a dashboard and alerts: docs/metrics.md.
"""

import argparse
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from reelweave.loader.base.printable import printable
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import open_storage
from reelweave.loader.storage.config import StorageConfig
from reelweave.pipelines.commands.look.report_run import kind_of
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.console import print_json, stderr, stdout

if TYPE_CHECKING:
    from reelweave.pipelines.metrics.sample import Place

PORT = 9464


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave metrics`."""
    parser.add_argument(
        "places",
        metavar="DATASET|RUN",
        nargs="+",
        help="folder or s3:// prefix that a curation writes to, or folder of a training run",
    )
    parser.add_argument("--once", action="store_true", help="print the numbers instead of serving them")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1); whoever reaches it may read the numbers",
    )
    parser.add_argument("--port", type=int, metavar="N", default=PORT, help=f"port (default: {PORT})")
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the numbers, or print them once."""
    if find_spec("prometheus_client") is None:
        raise UsageError("reelweave metrics needs Prometheus' client: pip install 'reelweave[metrics]'")
    if len(set(options.places)) < len(options.places):
        raise UsageError("a place is given twice; its numbers would be, too")
    from prometheus_client import generate_latest, start_http_server

    from reelweave.pipelines.metrics.exporter import only_for_loopback, registry_of
    from reelweave.pipelines.report.serve.hosts import is_loopback

    config = storage_config(options)
    registry = registry_of([_place(name, config) for name in options.places], _say)
    if options.once:
        sys.stdout.write(generate_latest(registry).decode())
        return 0
    try:
        server, _ = start_http_server(options.port, options.host, registry)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {options.host}, port {options.port}: {error}; give another --host or --port"
        ) from error
    if is_loopback(options.host):
        server.set_app(only_for_loopback(server.get_app(), server.server_port, options.host))
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"http://{host}:{server.server_port}/metrics"
    if options.json:
        print_json({"places": options.places, "url": url})
    else:
        stdout().print(f"metrics: {url} (Ctrl-C ends it)", markup=False, soft_wrap=True)
    sys.stdout.flush()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        stderr().print("the metrics are served no more")
    finally:
        server.shutdown()
    return 0


def _say(message: str) -> None:
    stderr().print(printable(message), markup=False, soft_wrap=True)


def _place(name: str, config: StorageConfig) -> "Place":
    """Return the reader of a run or a curation; what is missing is named before anything is served."""
    from reelweave.pipelines.metrics.curation import Curation
    from reelweave.pipelines.metrics.training import TrainingRun

    kind = kind_of(name)
    if kind == "nothing":
        raise RunError(
            f"{name} holds neither a dataset (manifest.json, or .ledger of a curation) nor a training run"
            " (metrics.jsonl, train.yaml or train-vae.yaml); start it first"
        )
    source: Place = (
        TrainingRun(Path(name), name) if kind == "run" else Curation(open_storage(name, config), name)
    )
    source.samples()
    return source
