"""Fit of the DiT's cost to a profile: Arachne's Eq. 9 by relative least squares, including bandwidths."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.train.cascade.costs.cost_model import DiTCost, Links
from reelweave.train.cascade.costs.fit_lines import line_above, relative_fit
from reelweave.train.cascade.costs.profile_csv import Profile
from reelweave.train.cascade.costs.run_sizes import RunSizes

_LEAST_S_PER_BYTE = 1e-15  # floor faster than any link, for transfers too short to measure


@dataclass(frozen=True)
class DiTFit:
    """Fitted cost model of the DiT.

    Attributes:
        cost: seconds and bytes.
        links: measured bandwidths; others as given.
        notes: unmeasured parts, in words.
    """

    cost: DiTCost
    links: Links
    notes: tuple[str, ...]

    def seconds(self, rows: Profile) -> Floats:
        """Return predicted seconds of a profile's DiT rows, float64 [n]."""
        seconds_nK = self.cost.seconds(rows.batch, rows.length, rows.degree, self.links)
        return seconds_nK.diagonal().copy()


def fit_dit(rows: Profile, sizes: RunSizes, links: Links) -> DiTFit:
    """Fit times and, if peaks were measured, activations.

    Args:
        rows: DiT rows of a profile.
        sizes: sizes derived from the run's configuration.
        links: bandwidths, kept where no measured group used the link.
    """
    tokens_n, degree_n = (rows.batch * rows.length).astype(float), rows.degree.astype(float)
    sent_n = tokens_n * sizes.exchanged_bytes * (degree_n - 1) / degree_n**2
    crossing_n = links.crossing(rows.degree)
    near_n, far_n = (degree_n > 1) & (crossing_n == 0), crossing_n > 0
    columns = {
        "fixed_s": np.ones_like(tokens_n),
        "linear_s": tokens_n / degree_n,
        "square_s": tokens_n * rows.length / degree_n,
        # In a group across nodes the network is the bottleneck.
        "node_bytes_per_s": np.where(near_n, sent_n, 0.0),
        "network_bytes_per_s": np.where(far_n, sent_n * crossing_n, 0.0),
    }
    used = [name for name, column in columns.items() if column.any()]
    fitted_values = relative_fit(np.stack([columns[name] for name in used], axis=1), rows.seconds)
    coefficients = dict(zip(used, fitted_values, strict=True))
    per_byte = {name: coefficients.pop(name) for name in used if name in Links.model_fields}
    rates = {name: 1 / max(seconds, _LEAST_S_PER_BYTE) for name, seconds in per_byte.items()}
    start, slope = _activations(rows, tokens_n / degree_n)
    cost = DiTCost(
        **{"fixed_s": 0.0, "linear_s": 0.0, "square_s": 0.0, **coefficients},
        exchanged_bytes=sizes.exchanged_bytes,
        states_bytes=sizes.states_bytes + start,
        token_bytes=slope,
        handed_token_bytes=sizes.handed_token_bytes,
        handed_sample_bytes=sizes.handed_sample_bytes,
    )
    return DiTFit(cost, links.model_copy(update=rates), tuple(_notes(rates, links, sizes)))


def _activations(rows: Profile, tokens_n: Floats) -> tuple[float, float]:
    known_n = np.isfinite(rows.peak_gib)
    return line_above(tokens_n[known_n], rows.peak_gib[known_n] * 2**30) if known_n.any() else (0.0, 0.0)


def _notes(measured: Collection[str], links: Links, sizes: RunSizes) -> list[str]:
    if not sizes.exchanged_bytes:
        return ["sequences of this model cannot be cut: plan with --degrees 1"]
    scopes = {"node_bytes_per_s": "within a node", "network_bytes_per_s": "over several nodes"}
    return [
        f"no DiT was measured on ranks {where}: {getattr(links, rate) / 1e9:g} GB/s there are taken as given"
        for rate, where in scopes.items()
        if rate not in measured
    ]
