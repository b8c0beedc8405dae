"""What is stored and what is encoded on the fly: the cheaper one, by a count of every second and byte."""

import itertools

import pytest
from pydantic import ValidationError

from reelweave.train.latents.choice import BucketFacts, choose, prices
from reelweave.train.latents.config import LatentsConfig


def counted(facts: BucketFacts, config: LatentsConfig) -> tuple[float, float]:
    """Prices of a sample, one epoch and one month after the other: stored, and on the fly."""
    second = config.device_hour_price / 3600
    stored = fly = 0.0
    own = facts.latent_bytes / 2**30
    clip = facts.clip_bytes / 2**30
    for _ in range(int(facts.views)):
        stored += facts.encode_s * second
    for _ in range(int(config.months)):
        stored += (own + config.clips * clip) * config.gib_month_price
        fly += clip * config.gib_month_price
    for _ in range(int(config.epochs)):
        stored += (own + config.clips * clip) * config.gib_read_price
        fly += clip * config.gib_read_price + facts.encode_s * second
    return stored, fly


def test_prices_are_those_that_a_count_gives() -> None:
    chosen = set()
    cases = itertools.product(
        (0.01, 3.0), (2**20, 2**26), (1, 3), (1, 5, 40), (0.0, 0.02, 20.0), (False, True)
    )
    for encode_s, latent_bytes, views, epochs, month, clips in cases:
        facts = BucketFacts("9x16x24", encode_s, latent_bytes * views, 2**21, views)
        config = LatentsConfig(
            views=views,
            clips=clips,
            epochs=epochs,
            device_hour_price=2.5,
            gib_month_price=month,
            gib_read_price=month / 10,
            months=3,
        )
        stored, fly = counted(facts, config)
        found = prices(facts, config)
        assert (found.stored, found.on_the_fly) == pytest.approx((stored, fly))
        decided, why = choose(facts, config)
        if stored != pytest.approx(fly):
            assert decided == (stored < fly)
        assert f"{1000 * found.stored:.4g} stored" in why
        chosen.add(decided)
    assert chosen == {True, False}


def test_without_prices_all_is_stored_but_what_is_named() -> None:
    facts = BucketFacts("9x16x24", 1.0, 1.0, 1.0, 1.0)
    assert choose(facts, LatentsConfig())[0]
    assert not choose(facts, LatentsConfig(on_the_fly=("9x16x24",)))[0]
    assert choose(facts, LatentsConfig(on_the_fly=("9x24x16",)))[0]


def test_a_price_of_the_device_needs_epochs() -> None:
    with pytest.raises(ValidationError, match="needs epochs"):
        LatentsConfig(device_hour_price=2.0)
