"""Floor 6: models out to, and in from, other frameworks, by tables that say which array is which."""
