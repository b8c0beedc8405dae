"""Numbers and page of training runs."""
