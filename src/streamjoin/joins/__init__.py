"""One file an algorithm behind one protocol, and the driver that feeds them."""
