"""What each way to decode costs and gains: matrices of runs, ablations, and their reports."""
