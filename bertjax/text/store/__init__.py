"""The token store: format, manifest, writer, verification, and copies on a local disk."""
