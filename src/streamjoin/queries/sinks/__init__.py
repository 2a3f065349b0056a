"""Where a query's rows go."""
