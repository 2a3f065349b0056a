"""The nouns: predicates, windows, the join spec, expressions and errors. Imports nothing of the layers above."""
