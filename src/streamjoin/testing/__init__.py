"""What tests of joins need: an oracle, stream generators, conformance checks."""
