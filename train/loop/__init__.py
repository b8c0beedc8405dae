"""Training loop with resume, stop signals and held-out evaluation."""
