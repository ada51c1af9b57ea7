"""The command line: one verb per job."""
