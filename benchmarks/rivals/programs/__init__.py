"""The same joins in other systems. Those that are no dependency run as programs of their own environment."""
