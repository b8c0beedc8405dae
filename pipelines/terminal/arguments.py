"""Argument parsers: commands in groups, a short usage, and the nearest known word for a mistyped one."""

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from reelweave.loader.base.printable import printable

_INVALID_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
_MOST_COMPARED = 80  # characters of a word
LIST = "list"
"""Word in the place of a name that asks for all names."""


class Parser(argparse.ArgumentParser):
    """Parser of one command. Errors name the nearest known word, hide passwords and cannot control a terminal."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        for name in (None, "store"):
            self.register("action", name, _Once)

    def format_usage(self) -> str:
        """Return the usage on one line: options that must be given, and arguments."""
        # Positional arguments and options are both actions; argparse has no public list of them.
        words = [_usage(action) for action in self._actions if action.required and action.option_strings]
        words += [_usage(action) for action in self._actions if not action.option_strings]
        return f"usage: {' '.join([self.prog, '[OPTIONS]', *words])}\n"

    def format_help(self) -> str:
        """Return the help with the usage of `format_usage` in place of one that lists every option."""
        self.usage = self.format_usage().removeprefix("usage: ").rstrip().replace("%", "%%")
        return super().format_help()

    def option_names(self) -> list[str]:
        """Return every long option."""
        names = [name for action in self._actions for name in action.option_strings]
        return [name for name in names if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and exit with status 2."""
        from reelweave.loader.storage.names import without_secrets

        if match := _INVALID_CHOICE.search(message):
            choices = [word.strip(" '") for word in match[2].split(",")]
            message_text = f"{match[1]!r} is none of {', '.join(choices)}{did_you_mean(match[1], choices)}"
            message = message[: match.start()] + message_text
        text = printable(without_secrets(f"{self.prog}: {message}"))
        self.exit(2, f"{text}\n{self.format_usage()}Help: {self.prog} --help\n")

    def reject(self, words: Iterable[str]) -> NoReturn:
        """Fail because of arguments that nothing takes."""
        extra = list(words)
        names = self.option_names()
        hints = (did_you_mean(word.partition("=")[0], names) for word in extra if word.startswith("-"))
        self.error(f"no such option or argument: {' '.join(extra)}{next(filter(None, hints), '')}")


class _Once(argparse.Action):
    """Value of an option that holds one: of several the last, as in argparse, which is noted in ``repeated``."""

    def __call__(self, _: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given = vars(namespace).setdefault("given", {})
        if option_string is not None:
            if self.dest in given and given[self.dest] != values:
                _note_repeated(namespace, option_string, values, given[self.dest])
            given[self.dest] = values
        setattr(namespace, self.dest, values)


class ListedName(_Once):
    """Name of one of several things; the word "list" in its place prints all, and ends the program as --help does.

    Args:
        listing: function to the text that is printed.
    """

    def __init__(self, *arguments: Any, listing: Callable[[], str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._listing = listing

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values == LIST:
            print(self._listing())
            parser.exit()
        super().__call__(parser, namespace, values, option_string)


class _Override(argparse.Action):
    """``KEY=VALUE`` appended to those before; of one key with several values the last holds, which is noted."""

    def __call__(self, _: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        earlier = list(getattr(namespace, self.dest))
        key, _, value = values.partition("=")
        before = [other.partition("=")[2] for other in earlier if other.partition("=")[0] == key]
        if before and before[-1] != value:
            _note_repeated(namespace, f"{option_string} {key}", value, before[-1])
        setattr(namespace, self.dest, [*earlier, values])


def _note_repeated(namespace: Any, option: str, holds: object, before: object) -> None:
    note = f"{option} is given twice: {holds} holds, {before} does not"
    namespace.repeated = [*getattr(namespace, "repeated", ()), note]


class Program(Parser):
    """Parser of the whole command line, whose help shows the commands in groups.

    Args:
        groups: summary of each command, by name, by title of its group.
        options: options of `argparse.ArgumentParser`.
    """

    def __init__(self, groups: Mapping[str, Mapping[str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._groups = groups

    def format_help(self) -> str:
        """Return description, usage, groups of commands and options."""
        names = [name for group in self._groups.values() for name in group]
        width = max(map(len, names)) + 2
        lines = [self.description or "", "", f"usage: {self.prog} COMMAND [OPTIONS] ..."]
        for title, group in self._groups.items():
            lines += ["", f"{title}:", *(f"  {name:{width}}{summary}" for name, summary in group.items())]
        lines += ["", "Options:"]
        rows = [
            (" ".join([", ".join(action.option_strings), str(action.metavar or "")]), action.help or "")
            for action in self._actions
            if action.option_strings
        ]
        lines += [f"  {options:{width + 9}}{text}" for options, text in rows]
        lines += ["", self.epilog or ""]
        return "\n".join(lines).rstrip() + "\n"


def add_config(
    parser: Any,
    described: str = "YAML configuration (default: every key's default)",
    *,
    required: bool = False,
    default: str | None = None,
    overrides: str = "one key",
) -> None:
    """Add ``--config`` and ``--set``, which `reelweave.pipelines.configuration.config.resolve` takes.

    Args:
        parser: parser, or a group of one.
        described: content of the file, and what holds without it.
        required: true if the file must be given.
        default: file without the option.
        overrides: overrides by ``--set``.
    """
    parser.add_argument(
        "--config",
        required=required,
        default=default,
        metavar="FILE",
        help=f"{described}; a path, or an address such as s3://bucket/NAME.yaml",
    )
    parser.add_argument(
        "--set", action=_Override, default=[], metavar="KEY=VALUE", help=f"override {overrides}, repeatable"
    )


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-format``, which `reelweave.pipelines.terminal.curation_progress` takes."""
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="progress on stderr: bars or lines of text, or JSON lines",
    )


def add_global(parser: Any, default: Any = argparse.SUPPRESS) -> None:
    """Add the options of every command.

    Args:
        parser: parser, or a group of one.
        default: value without the option; by default none, so that an option before the command holds.
    """
    help_of = {
        ("-q", "--quiet"): "print results and errors only",
        ("-v", "--verbose"): "print more: log messages, tracebacks of errors",
        ("--json",): "print the result as JSON on stdout",
    }
    for names, text in help_of.items():
        parser.add_argument(*names, action="store_true", default=default, help=text)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean X?" for the known word nearest to a mistyped one, "" if none is near."""
    close = difflib.get_close_matches(word[:_MOST_COMPARED], list(choices), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _usage(action: argparse.Action) -> str:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.option_strings:
        return f"{max(action.option_strings, key=len)} {name}"
    return {"?": f"[{name}]", "*": f"[{name}...]", "+": f"{name}..."}.get(str(action.nargs), name)
