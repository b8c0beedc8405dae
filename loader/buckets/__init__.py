"""Token lengths, costs and budgets: the bucket and the batch size of every sample."""
