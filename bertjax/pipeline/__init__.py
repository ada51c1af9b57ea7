"""Whole runs, as the command line and Python start them: from a config to files, figures and a result."""
