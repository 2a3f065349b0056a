"""Sorting, sweeping and scanning whole batches."""
