"""Models named on a hub: whether they can be had, known before anything waits for a network."""

from pathlib import Path

from loader.errors import UsageError, first_line

_TIMEOUT_S = 10.0


def check_hub(repository: str, asked: str) -> None:
    """Passes when the hub answers for a model or the machine's cache holds it.

    Args:
        repository: "owner/name".
        asked: key and value of the configuration that named it, for the message.

    Raises:
        UsageError: neither; it says what to do.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot_download(repository, local_files_only=True)
    except HFValidationError:
        raise UsageError(
            f"{asked} is no folder here and no name a hub could know;"
            " give the folder of a model, or OWNER/NAME"
        ) from None
    except (LocalEntryNotFoundError, OSError):
        try:
            HfApi().model_info(repository, timeout=_TIMEOUT_S)
        except Exception as error:
            raise UsageError(
                f"{asked}: {repository} is not in this machine's model cache, and the hub does not give it"
                f" ({first_line(error)}); bring the model here and give its folder or file"
            ) from error


def hub_commit(repository: str) -> str:
    """The commit of a model that would be used now: the hub's, or without the hub that of this machine's cache.

    Raises:
        UsageError: neither has it.
    """
    from huggingface_hub import HfApi, snapshot_download

    try:
        return str(HfApi().model_info(repository, timeout=_TIMEOUT_S).sha)
    except Exception as error:  # noqa: BLE001 - whatever keeps the hub away
        try:
            return Path(snapshot_download(repository, local_files_only=True)).name
        except (OSError, ValueError):
            raise UsageError(
                f"{repository} is not in this machine's model cache, and the hub does not give it"
                f" ({first_line(error)}); bring the model here and give its folder or file"
            ) from error


def local_folder(name: str) -> Path | None:
    """The folder ``name`` means, or None when it can only be a name on a hub.

    Raises:
        UsageError: it is spelled like a path, and there is no such folder.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise UsageError(f"there is no folder {name}; give the folder of a model, or its name on a hub")
    return None
