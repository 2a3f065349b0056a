"""Sources that the embedded executor reads in this process: files, generated rows, Kafka topics, tables."""
