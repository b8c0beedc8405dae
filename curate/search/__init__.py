"""Search over the stored embeddings of a dataset."""
