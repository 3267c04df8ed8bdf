"""Builds the bootable image: a Debian 13 root with the product in it, its kernel, a disk, a release to update to."""
