"""A pipeline from a file: sources, join, sink."""
