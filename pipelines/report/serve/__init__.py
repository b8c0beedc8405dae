"""A small web server for one report: its files, and the dataset's clips to play."""
