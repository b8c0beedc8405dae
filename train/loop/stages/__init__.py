"""A new run that begins with the weights of another: ``train.start_from``."""
