"""Columnar storage of a side's live tuples, and the way from Arrow columns to machine words."""
