"""Files of a dataset that is to be published: made by parts, and placed."""
