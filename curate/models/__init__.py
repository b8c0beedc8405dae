"""Models over clips: where they come from, embeddings, aesthetics, text embeddings."""
