"""The program ``reelweave``: one module per command, one way to fail."""

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

from reelweave.loader.base.printable import printable
from reelweave.loader.errors import MachineError, NoRoomError, RunError, UsageError, is_short, lacks_room
from reelweave.pipelines.terminal.arguments import Parser, Program, add_global, did_you_mean
from reelweave.pipelines.terminal.completion import SHELLS, completion
from reelweave.pipelines.terminal.encoding import check_encoding
from reelweave.pipelines.terminal.extras import missing
from reelweave.pipelines.terminal.noise import hide_secrets, set_verbosity, silence_noise
from reelweave.pipelines.terminal.stop_signal import EXIT_TERMINATED, raise_at_sigterm

GROUPS = {
    "Begin": {
        "demo": "Run the whole journey on this machine in a few minutes",
        "config": "Print configurations: init, show, explain, schema",
    },
    "Make data": {
        "curate": "Cut raw videos into a dataset of captioned clips",
        "index": "Make existing WebDataset tars a dataset, without changing them",
        "latents": "Encode a dataset's clips and captions once, into a new version",
        "remove": "Take a source or a sample out of a dataset",
    },
    "Look at it": {
        "report": "Write a dataset's page: accounting, distributions, buckets, clips",
        "show": "Print all that is known of a clip, kept or rejected",
        "extract": "Write a clip's file",
        "status": "Print how far a curation is, from any machine",
        "metrics": "Serve numbers of curations and training runs to Prometheus",
        "search": "Find clips by words or by an example",
        "verify": "Check every byte of a dataset, or the checkpoints of a run",
    },
    "Train": {
        "train": "Train a text-to-video model",
        "train-vae": "Fine-tune a video tokenizer",
        "sample": "Generate videos from captions, on all GPUs together",
        "evaluate": "Score sampled videos, checkpoint by checkpoint",
        "export": "Write a checkpoint's weights as safetensors or a diffusers folder",
        "state": "Inspect a saved position of a stream, or compare two",
    },
    "Plan and measure": {
        "plan": "Plan a cluster's steps, or their cascades, without a GPU",
        "fit": "Fit costs and memory budgets to measured steps",
        "bench": "Measure shots, curation, loading, kernels, shapes or cascades",
    },
}
_FOLDERS = dict(zip(GROUPS, ("begin", "data", "look", "train", "plan"), strict=True))
_COMPLETION = "--completion"
_RESUMABLE = frozenset({"curate", "index", "latents", "train", "train-vae"})
"""Commands that keep what they have done when they are interrupted."""
COMMANDS = tuple(name for group in GROUPS.values() for name in group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the terminal.

    Returns:
        0 on success, 1 on failure, 2 on a wrong call or configuration, 75 where the same command goes on later, 130
        after Ctrl-C, 143 after SIGTERM.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with raise_at_sigterm() as stop:
            try:
                return _run(words)
            except KeyboardInterrupt:
                cause, status = (
                    ("stopped by SIGTERM", EXIT_TERMINATED) if stop.heard else ("interrupted", 130)
                )
                goes_on = _RESUMABLE.intersection(words[:1])
                remedy = (
                    "the same command goes on where it stopped" if goes_on else "run the same command again"
                )
                return _fail(f"{cause}; {remedy}", status)
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        return 0
    finally:
        _flush()


def _flush() -> None:
    """Write what standard output still holds; end with 75 where there is no room for it, and 1 for other faults."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        # What we still hold would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            status = os.EX_TEMPFAIL if lacks_room(error) else 1
            raise SystemExit(_fail(f"standard output cannot be written: {error.strerror}", status)) from error


def _run(words: Sequence[str]) -> int:
    # PyTorch's threads look at this when it is imported. By default they spin while they wait, and beside one busy
    # process 20 steps on two processors had not ended after 100 s, instead of 28.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    silence_noise()
    hide_secrets()
    sys.excepthook = _show_bug
    verbose = False
    try:
        check_encoding(words)
        options = parse_words(words)
        verbose = options.verbose
        set_verbosity(options.quiet, verbose)
        for note in () if options.quiet else getattr(options, "repeated", ()):
            _say(note)
        return int(options.module.run(options))
    except UsageError as error:
        return _fail(error, 2, verbose)
    except (MachineError, NoRoomError) as error:
        return _fail(error, os.EX_TEMPFAIL, verbose)
    except RunError as error:
        return _fail(error, 1, verbose)
    except ModuleNotFoundError as error:
        if (message := missing(error)) is None:
            raise
        return _fail(message, 2, verbose)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
            raise
        return _fail(
            "this machine grants no more memory or threads; look at ulimit -v, ulimit -u and the container", 1
        )
    except OSError as error:
        if is_short(error):
            where = f" ({error.filename})" if error.filename else ""
            return _fail(
                f"this machine grants no more: {error.strerror}{where}; look at ulimit -n and ulimit -v, then run the"
                " same command again",
                os.EX_TEMPFAIL,
                verbose,
            )
        if not lacks_room(error):
            raise
        # Files without a name, and Arrow's, do not say where they are.
        where = error.filename or f"standard output or the temporary folder {tempfile.gettempdir()} (TMPDIR)"
        return _fail(f"no room to write {where}: {error.strerror}", os.EX_TEMPFAIL, verbose)


def parse_words(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line, or exit with status 2 and the nearest known word.

    Only the module of the command that is called is imported.
    """
    behind = zip(words, ["", *words], strict=False)
    called = next(
        (word for word, before in behind if not (word.startswith("-") or before == _COMPLETION)), ""
    )
    parser = build_parser([called] if called in COMMANDS else [])
    if called and called not in COMMANDS:
        parser.error(f"no command {called!r}{did_you_mean(called, COMMANDS)}")
    options: argparse.Namespace
    options, extra = parser.parse_known_args(words)
    if extra:
        options.parser.reject(extra)
    return options


def build_parser(commands: Sequence[str] = COMMANDS) -> Program:
    """Return the parser of the command line with the options of these commands."""
    parser = Program(
        GROUPS,
        prog="reelweave",
        description="From a dump of raw videos to a balanced text-to-video training run.",
        epilog="Help on a command: reelweave COMMAND --help",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument(
        _COMPLETION,
        action=_Completion,
        metavar="SHELL",
        choices=SHELLS,
        help=f"print a completion script: {', '.join(SHELLS)}",
    )
    add_global(parser, default=False)
    parser.set_defaults(parser=parser)
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name in commands:
        module: ModuleType = importlib.import_module(_module(name))
        command = added.add_parser(name, description=module.__doc__, help=_summary(name))
        command.set_defaults(module=module, parser=command)
        module.add_arguments(command)
        add_global(command.add_argument_group("options of every command"))
    return parser


class _Version(argparse.Action):
    """Print the version, which takes a tenth of a second to look up, only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"{parser.prog} {version('reelweave')}")
        parser.exit()


class _Completion(argparse.Action):
    """Print the completion script of a shell, for which all commands are imported."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, *__: Any) -> None:
        print(completion(build_parser(), shell))
        parser.exit()


def _module(name: str) -> str:
    """Return the module of a command, in the folder of its group."""
    group = next(title for title, commands in GROUPS.items() if name in commands)
    return f"reelweave.pipelines.commands.{_FOLDERS[group]}.{name.replace('-', '_')}"


def _summary(name: str) -> str:
    return next(group[name] for group in GROUPS.values() if name in group)


def _fail(message: object, status: int, verbose: bool = False) -> int:
    if verbose and isinstance(message, BaseException):
        _show_bug(type(message), message, message.__traceback__)
    _say(message)
    return status


def _say(message: object) -> None:
    from reelweave.loader.storage.names import without_secrets

    print(f"reelweave: {printable(without_secrets(str(message)))}", file=sys.stderr)


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from reelweave.loader.storage.names import without_secrets

    lines = traceback.format_exception(kind, error, trace)
    print(printable(without_secrets("".join(lines)), keep="\n"), file=sys.stderr, end="")


if __name__ == "__main__":
    sys.exit(main())
