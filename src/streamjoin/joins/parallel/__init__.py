"""The papers' parallel joins: PIM-Tree, ScaleJoin, both handshake joins."""
