"""The routes of queries, streams and the system, and the models of their responses."""
