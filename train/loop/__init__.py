"""The training loop, how it resumes, and how it is asked to stop."""
