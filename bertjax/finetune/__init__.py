"""Floor 7: the paper's tasks, and what they are measured by."""
