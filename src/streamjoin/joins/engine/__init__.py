"""The embedded engine: it handles order, windows, expiry and results; algorithms only pair tuples."""
