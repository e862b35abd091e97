"""Readers of this machine, or of texts saved from one: each takes its input from either."""
