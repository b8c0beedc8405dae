"""Resolved configurations kept beside what was made with them, so that the same command can repeat it."""

from collections.abc import Sequence

import yaml
from pydantic import BaseModel

from reelweave.loader.storage import StorageConfig
from reelweave.loader.storage.names import without_secrets, without_secrets_in
from reelweave.pipelines.configuration.shell import shell_line


def repeated_with(out: str, name: str, storage: StorageConfig) -> list[str]:
    """Return the options that give a command the configuration kept in its output.

    Args:
        out: folder or prefix of the output.
        name: path of the kept file in it.
        storage: settings of the run; those that lead to the file are options, as they cannot be read from it.
    """
    words = ["--config", f"{out.rstrip('/')}/{name}"]
    if "://" in out:
        reach = {"endpoint_url": storage.endpoint_url, "region": storage.region}
        words += [
            part for key, value in reach.items() if value for part in ("--set", f"storage.{key}={value}")
        ]
    return words


def kept_yaml(config: BaseModel, command: Sequence[str], leave_out: frozenset[str] = frozenset()) -> str:
    """Return every key of a resolved configuration as YAML, below the command that repeats what was made.

    Credentials are no part of a configuration; addresses are kept without users, passwords and signatures.

    Args:
        config: resolved configuration.
        command: words behind the program's name.
        leave_out: names of sections to leave out.
    """
    values = without_secrets_in(config.model_dump(mode="json", exclude=set(leave_out)))
    command_line = without_secrets(shell_line(["reelweave", *command]))
    head = f"# Resolved configuration with every key. To repeat:\n# {command_line}\n\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110)
