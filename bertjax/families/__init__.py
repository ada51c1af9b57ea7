"""Members of BERT's family, one file each: presets, heads, row layout and names in transformers."""
