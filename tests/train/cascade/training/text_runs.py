"""`runs.train_cases` of cases with a frozen text encoder, which is imported once, before the ranks are forked."""

from typing import Any

from tests.train.cascade.training import runs

IMPORTED_FIRST = (*runs.IMPORTED_FIRST, "transformers.models.bert.modeling_bert")


def train_cases(*arguments: Any) -> None:
    runs.train_cases(*arguments)
