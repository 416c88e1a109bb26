"""What crosses between a site and the coordinator, and the federation in one process."""
