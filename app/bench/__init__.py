"""Benchmarks as programs: each prints a table and writes JSON; README's tables come from that JSON.

Every claim of speed in this project is repeated by one of these commands, next to what it is compared to, in one run.
"""
