"""Floor 7: what a run will need and take, from the real compiler, before anybody pays for the machine."""
