"""`zoo.sweep`: its file, its grid of runs, the runs themselves, and what they found."""
