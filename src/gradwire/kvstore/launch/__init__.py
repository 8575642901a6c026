"""Launch of a run: its processes on one or several machines, their roles, and their keys."""
