"""What every site gets: a plan that was drafted, reviewed and frozen."""
