"""What a name may lead to: addresses that are public, prefixes that are permitted."""
