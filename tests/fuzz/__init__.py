"""Mutated files of every kind that a user can hand us: each ends in success or in one clear `ZooError`.

A kind (`tests.fuzz.kinds`) makes a case from a `random.Random`: valid files, changed in a few places
(`tests.fuzz.mutate`), and the calls that read them. `tests.fuzz.judge` runs the calls and says what is wrong
with their outcome; `tests.fuzz.guard` sees code that runs. `python -m tests.fuzz` does thousands of cases in
worker processes with limits of memory and time. A case is told by its kind, a seed and a number.
"""
