"""Many ad-hoc queries over shared streams, created and dropped at run time: AJoin (Karimov et al., VLDB 2019).

docs/concepts/ajoin.md maps the paper's sections to files. `language` is from SQL to plan, `optimizer` says what is
shared, `core` runs it, `engine` adds changes, journal and recovery, `executors` say where: in this process, in Spark's
driver or tasks, or in cells on Spark's executors. `streamjoin.adhoc` has the public names.
"""
