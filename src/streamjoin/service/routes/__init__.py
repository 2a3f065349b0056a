"""What clients can ask: queries, streams, the system, and the models of their answers."""
