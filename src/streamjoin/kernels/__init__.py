"""Numba kernels: they take and return arrays, and use neither Arrow nor specs."""
