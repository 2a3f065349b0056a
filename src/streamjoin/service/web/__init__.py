"""What every request passes before its route: connections, limits, tokens, errors, shared answers."""
