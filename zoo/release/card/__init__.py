"""The model card, README.md: rendered from what the release records, and checked against it before a push."""

from zoo.release.card.check import check_card
from zoo.release.card.render import NOTES, addressed, render

__all__ = ["NOTES", "addressed", "check_card", "render"]
