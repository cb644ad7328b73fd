"""`zoo.reproduce`: a release trained again, and everything recorded of it measured again."""
