"""`script_ranks.run` where scripts of all frameworks are run: each is imported once, before the ranks are forked."""

from typing import Any

from tests.loader.stream.loaders import script_ranks

IMPORTED_FIRST = (
    *script_ranks.IMPORTED_FIRST,
    "lightning",
    "transformers.trainer",
    "diffusers.optimization",
    "diffusers.training_utils",
)


def run(*arguments: Any) -> None:
    script_ranks.run(*arguments)
