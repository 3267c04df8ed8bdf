"""What `make packages` makes of the wheels: a Debian package, an image for container engines, their bills."""
