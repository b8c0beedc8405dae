"""Options of commands that open a dataset without a configuration file."""

import argparse
import json

from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.configuration.config import resolve


def add_storage_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--endpoint-url`` and ``--allow``."""
    parser.add_argument("--endpoint-url", metavar="URL", help="S3 endpoint (default: AWS)")
    parser.add_argument(
        "--allow",
        metavar="PREFIX",
        action="append",
        default=[],
        help="let a dataset on S3 or the web name tars below PREFIX (storage.allowed_prefixes), repeatable",
    )


def storage_config(options: argparse.Namespace) -> StorageConfig:
    """Return the storage settings of those options."""
    overrides = [f"endpoint_url={options.endpoint_url}"] if options.endpoint_url else []
    if options.allow:
        overrides.append(f"allowed_prefixes={json.dumps(options.allow)}")
    return resolve(StorageConfig, None, overrides)
