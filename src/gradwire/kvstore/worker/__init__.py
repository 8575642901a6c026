"""Worker's side of a distributed store: its view of keys, and its connections to the servers."""
