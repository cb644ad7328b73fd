"""What the operations of a view do to a whole batch at once, on any device."""
