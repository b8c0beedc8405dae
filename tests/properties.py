"""Settings of property tests, whose results do not depend on the speed of a machine."""

from hypothesis import HealthCheck, settings

ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Inputs as many as usual, however long each takes to draw and to test: a busy machine is no failure."""
