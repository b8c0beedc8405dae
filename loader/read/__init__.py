"""Reading planned samples: fetch, cache, check, decode, collate."""
