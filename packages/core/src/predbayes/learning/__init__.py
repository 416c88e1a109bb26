"""Networks, likelihoods, the one training loop, local learners and distillation."""
