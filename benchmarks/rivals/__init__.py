"""The same work in other systems."""
