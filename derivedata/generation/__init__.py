"""A model at work: which one, the life of its server, the requests, and the judging of what comes back."""
