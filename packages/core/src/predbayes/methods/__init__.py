"""One paper in one file, each by the `Method` protocol."""
