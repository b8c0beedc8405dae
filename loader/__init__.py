"""The dataset on disk and everything that reads it: usable alone, without Ray or curation models."""
