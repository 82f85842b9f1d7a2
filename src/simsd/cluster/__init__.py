"""Many replicas of the server, on one machine or many, with Ray Serve (the extra `ray`)."""
