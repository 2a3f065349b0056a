"""Tools for testing joins: an oracle, stream generators, conformance checks."""
