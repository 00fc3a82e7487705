"""The simulator: all agents in this process."""
