"""One decode of a source: shots, spans, scores and clips together."""
