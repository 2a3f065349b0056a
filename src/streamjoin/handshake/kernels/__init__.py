"""The chain of nodes of the handshake joins."""
