"""Published curation recipes: files of filters with their sources, below a user's own configuration."""
