"""What `make packages` makes of the wheels: a Debian package, an image for container engines, and what they are made of."""
