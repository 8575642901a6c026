"""Starting a run: its processes on one machine or several, who they are, and the keys that they speak with."""
