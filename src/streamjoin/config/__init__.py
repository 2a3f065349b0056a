"""TOML files as checked, frozen data; every error names its line."""
