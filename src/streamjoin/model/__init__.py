"""Predicates, windows, the join spec, expressions and errors. Imports nothing from the layers above."""
