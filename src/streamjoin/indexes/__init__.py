"""One file an index over (key word, position) entries of a sliding window."""
