"""The ledger: what a run has done so far, and the records it holds."""
