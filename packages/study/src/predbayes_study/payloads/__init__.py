"""What leaves a site: the kinds of upload of a study."""
