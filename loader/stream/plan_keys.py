"""Keys of a stream's configuration that its plans follow from, beside the seed."""

import hashlib
import json
from typing import Any

from loader.read.stream_config import StreamConfig


def plan_keys(config: StreamConfig) -> dict[str, Any]:
    """Return the keys as JSON values. Among policies only equal_token changes the number of samples of a microbatch."""
    values = config.model_dump(mode="json", include={"buckets", "curriculum"})
    policy = config.policy if config.policy == "equal_token" else "another than equal_token"
    return {**values, "policy": policy}


def fingerprint(config: StreamConfig) -> str:
    """Return the SHA-256 of the keys, by which a state knows the plans whose steps it counts."""
    plans = config.model_dump(mode="json", include={"buckets", "curriculum"})
    said = json.dumps([plans, config.policy == "equal_token"], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()
