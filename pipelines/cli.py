"""The program ``reelweave``: one module per command, one way to fail."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from loader.errors import RunError, UsageError

COMMANDS = (
    "demo",
    "curate",
    "index",
    "report",
    "verify",
    "remove",
    "search",
    "latents",
    "train",
    "train-vae",
    "plan",
    "sample",
    "export",
    "fit",
    "state",
    "bench",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 on success, 1 on failure, 2 on a wrong call or configuration."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.module.run(options))
    except UsageError as error:
        return _fail(error, 2)
    except RunError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted; the same command goes on where it stopped", 130)
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough.
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reelweave", description="From a dump of raw videos to a balanced text-to-video training run."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module: ModuleType = importlib.import_module(f"pipelines.{name.replace('-', '_')}")
        summary = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(module=module)
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    return parser


def _fail(message: object, status: int) -> int:
    print(f"reelweave: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
