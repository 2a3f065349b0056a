"""What the join types decide: functions of times, marks and bounds alone, one file for each type.

The embedded engine, Spark and ad-hoc queries use them; each keeps marks, bounds and tuples in its own way.
"""
