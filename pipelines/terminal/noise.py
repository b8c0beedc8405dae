"""Log messages on the terminal: which are shown, and without what."""

import logging

from reelweave.loader.base.printable import printable

# By logger. Both come from importing torchao, which diffusers and peft do wherever it is installed.
_NOISE = {
    "torch.utils._pytree": "register_constant() on Enum subclasses is deprecated",
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao` Tensor objects",
}


def silence_noise() -> None:
    """Drop these messages, and no others of the same loggers, from now on."""
    for name, text in _NOISE.items():
        logging.getLogger(name).addFilter(_Without(text))


def hide_secrets() -> None:
    """Show log messages without passwords and as `printable` text, unless another handler shows them."""
    if logging.lastResort and not logging.lastResort.filters:
        logging.lastResort.addFilter(_hide)


def set_verbosity(quiet: bool, verbose: bool) -> None:
    """Choose which log messages of ours are shown: errors only, all from INFO on, or by default warnings.

    `is_quiet` then says so to whatever else writes on stderr.
    """
    level = logging.ERROR if quiet else logging.INFO if verbose else logging.WARNING
    logging.getLogger("reelweave").setLevel(level)
    if logging.lastResort:
        logging.lastResort.setLevel(min(level, logging.WARNING))


def is_quiet() -> bool:
    """Return whether only results and errors are printed."""
    return logging.getLogger("reelweave").getEffectiveLevel() > logging.WARNING


def _hide(record: logging.LogRecord) -> bool:
    from reelweave.loader.storage.names import without_secrets

    record.msg, record.args = printable(without_secrets(record.getMessage()), keep="\n"), ()
    return True


class _Without(logging.Filter):
    """A filter of records that contain a text; equal filters are added to a logger once."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def filter(self, record: logging.LogRecord) -> bool:
        return self.text not in record.getMessage()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Without) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)
