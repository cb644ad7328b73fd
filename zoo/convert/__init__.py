"""Convert checkpoints of other projects to releases, key by key and without running their code."""
