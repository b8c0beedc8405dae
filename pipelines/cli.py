"""The program ``reelweave``: one module per command, one way to fail."""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType, TracebackType
from typing import NoReturn

from loader.base.printable import printable
from loader.errors import RunError, UsageError
from loader.storage.names import without_secrets
from pipelines.terminal.noise import hide_secrets, silence_noise

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
    silence_noise()
    hide_secrets()
    sys.excepthook = _show_bug
    try:
        options = build_parser().parse_args(arguments)
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


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="reelweave", description="From a dump of raw videos to a balanced text-to-video training run."
    )
    parser.add_argument("--version", action="version", version=f"reelweave {version('reelweave')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module: ModuleType = importlib.import_module(f"pipelines.commands.{name.replace('-', '_')}")
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


class _Parser(argparse.ArgumentParser):
    """A parser, also of each command, that shows no password of a wrong call, and nothing that a terminal obeys."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(without_secrets(message)))


def _fail(message: object, status: int) -> int:
    print(f"reelweave: {printable(without_secrets(str(message)))}", file=sys.stderr)
    return status


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    lines = traceback.format_exception(kind, error, trace)
    print(printable(without_secrets("".join(lines)), keep="\n"), file=sys.stderr, end="")


if __name__ == "__main__":
    sys.exit(main())
