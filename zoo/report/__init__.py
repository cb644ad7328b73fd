"""Figures of what trainings did, and the page made of them."""
