"""The PIM-Tree shared by threads, and the queue its join takes tasks from."""
