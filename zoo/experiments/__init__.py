"""Experiments: records of finished trainings, and what is made of a list of them."""
