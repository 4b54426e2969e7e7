"""Benchmarks: contenders side by side in one run, in alternating rounds, every result checked."""
