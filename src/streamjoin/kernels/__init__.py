"""Numba only: arrays in, arrays out. Every other layer calls these and none of them knows Arrow or specs."""
