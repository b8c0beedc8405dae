"""Choice between storing latents and encoding on the fly, from sizes, seconds and prices alone."""

from dataclasses import dataclass

from reelweave.train.latents.config import LatentsConfig

_GIB = float(1 << 30)
_HOUR_S = 3600.0


@dataclass(frozen=True)
class BucketFacts:
    """Measured properties of one bucket.

    Attributes:
        name: FRAMESxHEIGHTxWIDTH.
        encode_s: seconds of the device per sample; None: not measured.
        latent_bytes: mean bytes of a sample's latents, all views together.
        clip_bytes: mean bytes of a clip.
        views: mean number of views.
    """

    name: str
    encode_s: float | None
    latent_bytes: float
    clip_bytes: float
    views: float


@dataclass(frozen=True)
class Prices:
    """Cost of a sample over all epochs, in the currency of the configuration.

    Attributes:
        stored: cost of encoding each view once, and of keeping and reading latents at every epoch.
        on_the_fly: cost of keeping and reading the clip, and of encoding it at every epoch.
    """

    stored: float
    on_the_fly: float


def prices(facts: BucketFacts, config: LatentsConfig) -> Prices:
    """Compute the cost of device, storage and reading; needs ``device_hour_price``, ``epochs`` and ``encode_s``."""
    assert config.device_hour_price is not None
    assert config.epochs is not None
    assert facts.encode_s is not None
    encode = facts.encode_s * config.device_hour_price / _HOUR_S

    def keep_share(size: float) -> float:
        assert config.epochs is not None
        return size / _GIB * (config.gib_month_price * config.months + config.gib_read_price * config.epochs)

    stored_bytes = facts.latent_bytes + (facts.clip_bytes if config.clips else 0.0)
    return Prices(
        stored=facts.views * encode + keep_share(stored_bytes),
        on_the_fly=config.epochs * encode + keep_share(facts.clip_bytes),
    )


def choose(facts: BucketFacts, config: LatentsConfig) -> tuple[bool, str]:
    """Return True with the reason if a bucket is stored; equal costs are stored."""
    if facts.name in config.on_the_fly:
        return False, "latents.on_the_fly names it"
    if config.device_hour_price is None:
        return True, "latents.device_hour_price is not set"
    if facts.encode_s is None:
        return True, "it has no samples"
    costs = prices(facts, config)
    stored = costs.stored <= costs.on_the_fly
    return stored, (
        f"1000 samples cost {1000 * costs.stored:.4g} stored, {1000 * costs.on_the_fly:.4g} on the fly"
    )
