"""ScaleGate, the lock-free gate of many sources and readers, and ScaleJoin on top of it."""
