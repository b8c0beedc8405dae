"""Reports: numbers of a dataset or plan, and the pages that show them."""
