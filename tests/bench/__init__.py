"""Benchmarks: ratios measured side by side in one run, never a timed assertion in a test."""
