"""The window log: immutable files, their manifests and merges, on any file system."""
