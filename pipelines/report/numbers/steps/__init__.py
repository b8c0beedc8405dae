"""Numbers of planned steps: policies beside each other, and what is recommended."""
