"""The service over HTTP: requests and their description, the queue, the gate, the limits and the server."""
