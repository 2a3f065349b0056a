"""What runs in Spark's tasks: route, gate, join, order."""
