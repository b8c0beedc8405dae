"""Names of weights in original repositories: a table for each family, and what follows from it."""
