"""What stands before every route: connections, limits, tokens, errors, shared answers."""
