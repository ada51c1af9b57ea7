"""Files wherever they lie: a path or a URL, replaced atomically, locked, copied, read line by line."""
