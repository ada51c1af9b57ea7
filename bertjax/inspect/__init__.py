"""What a token store holds: counts, lengths, duplicates, overlap with evaluation text."""
