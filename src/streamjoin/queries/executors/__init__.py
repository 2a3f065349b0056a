"""Running the core on Spark."""
