"""Figures, each a file: of a run, of an evaluation, of several; and the look that all share."""
