"""Charts, pages and tables of every verb."""
