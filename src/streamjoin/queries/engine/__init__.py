"""The engine around the core: changes, journal, recovery, queries as users hold them."""
