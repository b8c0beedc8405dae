"""Numbers of a dataset's report: pure functions of its tables, a column at a time."""
