"""Availability of models on the hub, checked before any work."""

from pathlib import Path

from reelweave.loader.errors import UsageError, first_line

_TIMEOUT_S = 10.0


def check_hub(repository: str, setting: str) -> None:
    """Check that the hub has a model or that the machine's cache holds it.

    Args:
        repository: Name of the form "owner/name".
        setting: Configuration key and value that name it, for the message.

    Raises:
        UsageError: Neither has it; the message says what to do.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot_download(repository, local_files_only=True)
    except HFValidationError:
        raise UsageError(
            f"{setting} is no folder here and no name a hub could know;"
            " give the folder of a model, or OWNER/NAME"
        ) from None
    except (LocalEntryNotFoundError, OSError):
        try:
            HfApi().model_info(repository, timeout=_TIMEOUT_S)
        except Exception as error:
            raise UsageError(
                f"{setting}: {repository} is not in this machine's model cache, and the hub does not give it"
                f" ({first_line(error)}); bring the model here and give its folder or file"
            ) from error


def cached_folder(repository: str) -> Path | None:
    """Return the folder of a model in this machine's cache, or None."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except (OSError, ValueError):
        return None


def hub_commit(repository: str) -> str:
    """Return the commit of a model that would be used now: the hub's, or without the hub that of the cache.

    Raises:
        UsageError: Neither has it.
    """
    from huggingface_hub import HfApi

    try:
        return str(HfApi().model_info(repository, timeout=_TIMEOUT_S).sha)
    except Exception as error:
        if (folder := cached_folder(repository)) is not None:
            return folder.name
        raise UsageError(
            f"{repository} is not in this machine's model cache, and the hub does not give it"
            f" ({first_line(error)}); bring the model here and give its folder or file"
        ) from error


def local_folder(name: str) -> Path | None:
    """Return the local folder ``name``, or None when it can only be a name on the hub.

    Raises:
        UsageError: The name has the form of a path, and there is no such folder.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise UsageError(f"there is no folder {name}; give the folder of a model, or its name on a hub")
    return None
