"""What sites tell of their columns before a plan is frozen, and what follows from it."""
