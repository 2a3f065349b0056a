"""ScaleJoin: deterministic parallel joins of any number of sources.

Gulisano et al., 2016; docs/concepts/scalejoin.md maps the paper's sections to files. `gate` is the ScaleGate, `join`
and `shares` are the algorithm over the calls of a join, `live` and `live_gate` its runners between pushes, `inlets` the
sources that feed the gate by themselves.
"""
