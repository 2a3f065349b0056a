"""Index structures over (word, position): trees, hash table, ring, and the fused task that probes and inserts."""
