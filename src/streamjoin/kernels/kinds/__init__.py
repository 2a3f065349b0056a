"""Kernels of the join kinds: matched marks, tuples that leave their windows, as-of lookups."""
