"""Batched implementations of a view's operations, on any device."""
