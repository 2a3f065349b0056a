"""Many queries over shared buckets, one micro-batch at a time."""
