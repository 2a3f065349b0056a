"""All that touches the insides of Numba and llvmlite, apart from the kernels, which are plain functions on arrays.

`flags` has the decorators and the switches of the environment; `dispatcher` what is compiled of a kernel, `disk_cache`
what is kept of it, `compiling` what a terminal sees meanwhile. `machine`, `memory` and `atomics` are the instructions
that NumPy notation lacks, each with a twin in plain Python; `crew` and `calls` the words by which threads share work.
It is apart since a new version of Numba can break it: the versions are bounded, and `flags` says how to do without.
"""
