"""`zoo.diagnose`: which subjects it has, what is seen of each, and the report."""
