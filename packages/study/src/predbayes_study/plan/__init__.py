"""What a study agrees on: its schema, its text, and the models that it names."""
