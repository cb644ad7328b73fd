"""Experiments: trainings, their records, and comparisons of many."""
