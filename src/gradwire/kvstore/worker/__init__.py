"""The worker's side of a distributed store: keys as it knows them, and its connections to the servers."""
