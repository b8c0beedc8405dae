"""Context parallelism: sharded sequences with exact attention over all tokens."""
