"""Converts other projects' checkpoints to releases: reads them key by key, without running their code."""
