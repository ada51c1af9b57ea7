"""Features of a run, a file each: a hook does its work between the steps of the loop."""
