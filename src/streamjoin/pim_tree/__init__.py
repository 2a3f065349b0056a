"""The PIM-Tree: an index of two parts over a sliding window, and joins over it on many cores.

Shahvarani and Jacobsen, SIGMOD 2020; docs/concepts/pim-tree.md maps the paper's sections to files. `im_tree` and
`pim_tree` are the indexes, `shared` is the tree that threads share, `crew` its task queue and threads, `join` the
algorithm `pim_parallel`, `live` its runner between pushes. The cost model is `joins/cost.py`: every choice uses it.
"""
