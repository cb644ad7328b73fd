"""Checkpoints of other projects: read without running their code, understood key by key, made a release."""
