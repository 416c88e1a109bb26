"""Images at five sites, and one calibrated network for all of them."""
