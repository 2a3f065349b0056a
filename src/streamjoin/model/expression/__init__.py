"""SQL conditions: parsed into nodes, typed, brought to one form, evaluated over columns."""
