"""The token store: its format, its writer, and its copy on a local disk."""
