"""Merges any number of physical sources into one ordered stream of ready tuples."""
