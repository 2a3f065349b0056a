"""The embedded engine: order, windows, expiry, results; algorithms only pair tuples."""
