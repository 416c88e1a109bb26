"""Four hospitals, one model, one round: a predbayes study as a Flower app."""
