"""Map of a dataset's embeddings: its page, and a table for other programs."""
