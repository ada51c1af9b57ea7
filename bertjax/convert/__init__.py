"""Models out to other formats and in from them."""
