"""What a join will need on Spark at a rate and a window: arithmetic from counts and from a machine's constants."""
