"""From SQL text to a logical plan."""
