"""Output for people: console, tables, files, videos."""
