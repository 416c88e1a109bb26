"""From a site's own table to the plan's columns, and what is wrong on the way."""
