"""First commands of a new user: demo and configuration files."""
