"""Read-only storage on web servers."""
