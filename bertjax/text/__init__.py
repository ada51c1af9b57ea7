"""From raw text to a token store: sources, sentences, WordPiece and the store's format."""
