"""Raw videos to clips to shards: one module per stage, each a plain callable that works without Ray."""
