"""Probing and selecting for many queries at once."""
