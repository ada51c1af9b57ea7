"""From raw text to a token store: sources, sentences, vocabularies, and what makes the store."""
