"""Pages for people: report, model card, egress page, and their figures."""
