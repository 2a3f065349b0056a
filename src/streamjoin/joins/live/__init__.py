"""Joins that run: sources feed them from any thread, results leave as soon as they are found."""
