"""Local and remote files: paths and URLs, atomic replacement, locks, checksums, lines of text."""
