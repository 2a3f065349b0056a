"""The chained index, with which the PIM-Tree paper compares: its kernels, and the kinds over them."""
