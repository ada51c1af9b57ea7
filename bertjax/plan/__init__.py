"""What a run would take on hardware that need not be here."""
