"""The coordinator's side: the study's folder, what is taken in, and how it stands."""
