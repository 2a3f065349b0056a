"""Algorithms for batches: the sweep over sorted runs and the nested loop."""
