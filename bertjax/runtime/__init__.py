"""The processes of a run: discovery, heartbeat, agreement and shutdown. Also compilation and host memory."""
