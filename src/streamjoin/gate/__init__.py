"""Ready, ordered streams out of any number of physical sources."""
