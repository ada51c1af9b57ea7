"""From raw text to a token store: sources, sentences, vocabularies, and the store itself."""
