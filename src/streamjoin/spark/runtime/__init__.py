"""Sessions, Java, jars, workers and checkpoints."""
