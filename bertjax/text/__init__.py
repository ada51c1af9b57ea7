"""From raw text to a token store: sources, sentences, shards and the store's format."""
