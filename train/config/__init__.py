"""Configuration of training runs; no module here imports torch."""
