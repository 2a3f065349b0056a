"""Ad-hoc queries on Spark's executors: tasks store, join and write; the driver handles metadata."""
