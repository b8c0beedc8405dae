"""Published models."""
