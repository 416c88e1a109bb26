"""Images at several sites, as a Flower app."""
