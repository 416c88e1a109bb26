"""The site's side: training, approvals, and what is taken home."""
