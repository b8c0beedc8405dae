"""Two experts in sampling: which one predicts when, and what each was trained with."""
