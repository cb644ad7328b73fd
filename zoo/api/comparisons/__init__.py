"""`zoo.compare`: which methods run on what, and the comparison itself."""
