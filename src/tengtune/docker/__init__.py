"""The docker command, or compose file, of a container that trains on this host's cards."""
