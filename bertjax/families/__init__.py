"""Members of BERT's family, one file each: presets of the model's options, and what goes by the member's name."""
