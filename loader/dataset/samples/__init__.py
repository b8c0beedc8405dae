"""A sample's bytes as content for training, and as a person looks at them."""
