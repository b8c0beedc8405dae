"""ScaleFusion: spatial and temporal layers computed in slices, while other slices change ranks."""
