"""A latch-free Bw-Tree, the rival of the parallel PIM-Tree join: its memory, its nodes, and the joins over it."""
