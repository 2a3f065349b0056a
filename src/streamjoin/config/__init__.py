"""TOML files as checked, frozen data; every mistake named with its line."""
