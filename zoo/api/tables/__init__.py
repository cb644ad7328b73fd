"""`zoo.table`: which trainings lie in folders, what each measured, and one table of it all."""
