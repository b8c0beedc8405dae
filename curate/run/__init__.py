"""One curation run: state, stages over clips, verdict, shards, forecast."""
