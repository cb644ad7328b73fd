"""What finished runs say together: rows over seeds, differences, trends, and their table and picture."""
