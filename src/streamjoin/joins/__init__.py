"""Join algorithms behind one protocol, one per file, and the driver that feeds them."""
