"""Task files: read examples, write predictions."""
