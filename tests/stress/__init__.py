"""Campaigns: what docs/RELIABILITY.md promises, tried many times on real processes, files and signals.

One file per campaign; `python -m stress` (make stress) runs them in full, tests/test_campaigns.py a few trials of each.
"""
