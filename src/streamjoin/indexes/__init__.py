"""Indexes over the (key word, position) entries of a sliding window, one per file."""
