"""Plans of steps, cascades and sampling layouts, from configurations and measurements."""
