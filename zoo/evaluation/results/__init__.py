"""What `zoo.evaluation.diagnosis` still imports from here; it goes with that room."""
