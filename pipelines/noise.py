"""Messages of libraries that a person can do nothing about, kept out of the terminal."""

import logging

# By logger. Both come from importing torchao, which diffusers and peft do wherever it is installed.
_NOISE = {
    "torch.utils._pytree": "register_constant() on Enum subclasses is deprecated",
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao` Tensor objects",
}


def silence_noise() -> None:
    """Drop these messages, and no others of the same loggers, from now on."""
    for name, text in _NOISE.items():
        logging.getLogger(name).addFilter(_Without(text))


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
