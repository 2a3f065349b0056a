"""The handshake join and the low-latency handshake join: two streams that pass each other in a chain of threads.

Teubner and Mueller, SIGMOD 2011; Roy, Teubner and Gemulla, VLDB 2014. docs/concepts/handshake.md maps the papers'
sections to files. `chain` is the chain of nodes, `handshake` what both joins share and the original one, `low_latency`
the other, `live` their runner between pushes.
"""
