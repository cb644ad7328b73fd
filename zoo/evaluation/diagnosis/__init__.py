"""What a run or a release is like, seen: its measures on a sample of images, and the figures of a report."""
