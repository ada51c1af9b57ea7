"""A page that runs the network in a browser."""
