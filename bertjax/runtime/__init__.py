"""The processes of a run: how they find each other, watch each other, agree and stop."""
