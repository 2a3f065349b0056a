"""Grouped queries: partial groups, and the feeds that make them."""
